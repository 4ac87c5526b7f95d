"""Batches of a graph: which there are, and graphs for a fixed one opened, so that it may have any length."""
