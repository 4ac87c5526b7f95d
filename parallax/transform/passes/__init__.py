"""What is rewritten: one pass, one file."""
