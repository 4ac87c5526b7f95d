"""The rewrites of a graph: one pass, one module."""
