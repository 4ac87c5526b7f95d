"""Applies decisions to a graph: the passes, one module each, and the invariants after each."""
