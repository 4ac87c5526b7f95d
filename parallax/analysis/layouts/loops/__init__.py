"""Loops: those in which all workers run the same iterations, and those over the examples of a batch."""
