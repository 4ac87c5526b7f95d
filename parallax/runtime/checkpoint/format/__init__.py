"""Checkpoint files: the folder and its ownership, TensorFlow's format, and chains of increments."""
