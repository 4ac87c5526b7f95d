"""Finds the batches of a graph, and rebuilds a graph for a fixed batch length so that it accepts any length."""
