"""Optimizers that move every row of a table: plain Keras's `fit` against that of workers whose updates are lazy."""
