"""Builds new ops into a graph: the editor, collectives, exchanges."""
