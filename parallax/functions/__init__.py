"""Functions as the way in: a step that TensorFlow traces becomes a graph like any other."""
