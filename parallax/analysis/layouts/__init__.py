"""Finds the layout of every tensor of a step, from one table of op rules and a traversal that applies it."""
