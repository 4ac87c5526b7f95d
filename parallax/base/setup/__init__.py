"""What is built on a machine: the project's own libraries, and Horovod with TensorFlow. Python's library is enough."""
