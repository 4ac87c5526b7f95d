"""Measures a model: the rows that its steps touch, and a worker's compute time and memory per step."""
