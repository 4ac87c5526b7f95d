"""Optimizers that update every row of a table: plain Keras's `fit`, compared with workers that update lazily."""
