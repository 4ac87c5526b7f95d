"""Global batches cut into shares: arrays in shared memory, numbered rows, and what pipelines do to a row."""
