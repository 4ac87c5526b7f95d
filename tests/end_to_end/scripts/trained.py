"""Trains a table and a dense weight for some steps, and writes what they are before and then.

Arguments: the settings of parallax.Config as JSON, the file to write, and how many steps.
"""

import json
import sys

import numpy as np
import tensorflow.compat.v1 as tf

import parallax

settings, file, steps = json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3])
graph = tf.Graph()
with graph.as_default():
    tf.set_random_seed(7)
    ids = tf.placeholder(tf.int64, [None], name="ids")
    labels = tf.placeholder(tf.float32, [None, 1], name="labels")
    emb = tf.get_variable("emb", [11, 4])
    weights = tf.get_variable("weights", [4, 1])
    loss = tf.reduce_mean(tf.square(tf.nn.embedding_lookup(emb, ids) @ weights - labels))
    train = tf.train.GradientDescentOptimizer(0.5).minimize(loss)

sess, workers, worker, _ = parallax.parallel_run(graph, None, True, parallax.Config(seed=3, **settings))
with sess:
    [start], [start_weights] = sess.run([emb, weights])
    for step in range(steps):
        draw = np.random.default_rng([step, worker])
        sess.run(train, {ids: [draw.integers(0, 11, 6)], labels: [draw.normal(size=(6, 1))]})
    [emb_value], [weights_value] = sess.run([emb, weights])
if worker == 0:
    np.savez(file, start=start, start_weights=start_weights, emb=emb_value, weights=weights_value)
