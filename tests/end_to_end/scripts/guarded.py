"""A loop whose fed rate differs between workers and, broken on purpose, is not broadcast; worker 0 alone evaluates."""

import sys
from dataclasses import replace

import numpy as np
import tensorflow.compat.v1 as tf

import parallax
from parallax.runtime import open_session

if sys.argv[1] == "broken":
    rewrites_of = open_session.rewrites_of
    open_session.rewrites_of = lambda *arguments: replace(rewrites_of(*arguments), broadcasts=())

graph = tf.Graph()
with graph.as_default():
    x = tf.placeholder(tf.float32, [None, 3], name="x")
    rate = tf.placeholder(tf.float32, [], name="rate")
    w = tf.get_variable("w", [3, 1])
    train = tf.train.GradientDescentOptimizer(rate).minimize(tf.reduce_mean(tf.square(x @ w - 1.0)))
    _, evaluate = tf.metrics.mean(tf.ones([3]))

sess, _, rank, _ = parallax.parallel_run(graph)
with sess:
    for _ in range(9):
        sess.run(train, {x: [np.full([2, 3], 1.0 + rank, np.float32)], rate: [0.01 * (1 + rank)]})
        if rank == 0:
            sess.run(evaluate)
print("all good", flush=True)
