"""Propagates the state of every tensor on a worker from the batch to the updates, and derives classes and rewrites."""
