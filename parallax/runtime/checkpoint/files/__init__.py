"""A checkpoint's files: the folder and whose it is, TensorFlow's format, and chains of increments."""
