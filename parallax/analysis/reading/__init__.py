"""Reads a `tf.Graph`: its variables, their gradients and updates, as in one process (`CapturedGraph`)."""
