"""Checkpoints of all workers together: standard TensorFlow files, written and read a chunk of rows at a time."""
