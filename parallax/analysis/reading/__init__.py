"""Reads a `tf.Graph`: its variables, their gradients and updates, as one process has them (`CapturedGraph`)."""
