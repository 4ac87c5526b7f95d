"""Trains sixteen layers in four stages with batches that outweigh the weights by far."""

import numpy as np
import tensorflow.compat.v1 as tf

import parallax

WIDTH, ROWS = 64, 8192
graph = tf.Graph()
with graph.as_default():
    values = tf.placeholder(tf.float32, [None, WIDTH], name="x")
    for number in range(16):
        weights = tf.get_variable(f"w{number}", [WIDTH, WIDTH])
        values = tf.add(values, tf.nn.relu(values @ weights), name=f"layer{number}")
    tf.train.AdagradOptimizer(0.01).minimize(tf.reduce_mean(tf.square(values)), name="train")
config = parallax.Config(stages=4, micro_batches=6, seed=1)
session, *_ = parallax.parallel_run(graph, parallax_config=config)
batch = np.random.default_rng(1).standard_normal([ROWS, WIDTH]).astype(np.float32)
with session:
    for _ in range(6 * 6):
        session.run("train", {"x:0": [batch]})
