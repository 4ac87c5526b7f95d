"""A step as a graph: traced from the script's function, with its arguments, variables, tables and results."""
