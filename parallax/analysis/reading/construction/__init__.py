"""Records the construction of a graph by the script, and transfers the record to workers."""
