"""Splits global batches into shares: arrays in shared memory, numbered rows, and row-wise input pipelines."""
