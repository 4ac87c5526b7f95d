"""Reads a graph: capture, classification, propagation of states, and the choice of a plan."""
