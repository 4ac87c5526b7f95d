"""Executes the steps of a graph on workers of another process: requests, and the worker that serves them."""
