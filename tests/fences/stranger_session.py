"""`stranger_session.py FILE ADDRESS:PORT...`: has each TensorFlow server write FILE, and prints what came of it."""

import sys

import tensorflow.compat.v1 as tf

LIMIT_MS = 3000

file, *targets = sys.argv[1:]
config = tf.ConfigProto(operation_timeout_in_ms=LIMIT_MS)
for target in targets:
    with tf.Graph().as_default():
        written = tf.io.write_file(file, "by a stranger")
        try:
            with tf.Session(f"grpc://{target}", config=config) as session:
                session.run(written)
            print("written")
        except (tf.errors.UnavailableError, tf.errors.DeadlineExceededError):
            print("nothing")
