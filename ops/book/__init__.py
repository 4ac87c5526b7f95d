"""The documentation as a book that is kept true: tables from the code's definitions, and commands that are run."""
