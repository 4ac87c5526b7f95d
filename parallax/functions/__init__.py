"""The functions front end: a step that TensorFlow traces becomes a graph like any other."""
