"""Analyses a graph: capture, classification, propagation of layouts and states, and the choice of a plan."""
