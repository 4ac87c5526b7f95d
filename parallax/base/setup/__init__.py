"""Builds the project's native libraries, and Horovod with TensorFlow, on the target machine. Needs only Python."""
