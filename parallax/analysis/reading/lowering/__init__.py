"""Lowers functions, conditionals and loops to ops of the graph itself."""
