"""Job-wide checkpoints: standard TensorFlow files, written and read by all workers in chunks of rows."""
