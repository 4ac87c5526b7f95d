"""A script that `parallax check` has much to say about; with `--name` an op is named after the process."""

import os
import sys

import tensorflow.compat.v1 as tf

import parallax

tf.disable_v2_behavior()
graph = tf.Graph()
with graph.as_default():
    ids = tf.placeholder(tf.int32, [None], name="ids")
    rows = tf.nn.embedding_lookup(tf.get_variable("table", [11, 4]), ids)
    if "--name" in sys.argv:
        rows = tf.identity(rows, name=f"rows_{os.getpid()}")
    tf.train.AdamOptimizer(0.1).minimize(tf.reduce_sum(rows, name="all"))
parallax.parallel_run(
    graph, None, True, parallax.Config(routes={"tables": "allreduce"} if "--name" in sys.argv else {})
)
