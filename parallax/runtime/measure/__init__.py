"""Measures a model: the rows that its steps touch, what a worker computes in a step, and the memory that takes."""
