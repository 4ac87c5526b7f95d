"""How new ops are put into a graph: the editor, collectives, exchanges."""
