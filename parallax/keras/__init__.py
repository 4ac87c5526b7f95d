"""Keras models on several machines: `fit` as ever, its steps carried out by all workers."""
