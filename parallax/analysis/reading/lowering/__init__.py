"""Functions, conditionals and loops as ops of the graph itself."""
