"""Carries out decisions on a graph: the passes, one file each, and what must hold after each."""
