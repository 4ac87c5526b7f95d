"""Builds a wider layer in the workers than in the launcher, which no job can run with."""

import os

import tensorflow.compat.v1 as tf

import parallax

WIDTH = 4 if "OMPI_COMM_WORLD_RANK" in os.environ else 3

tf.disable_v2_behavior()
graph = tf.Graph()
with graph.as_default():
    x = tf.placeholder(tf.float32, [2, 5], name="x")
    weights = tf.get_variable("weights", [5, 3])
    hidden = x @ weights
    for name in {"alpha", "beta", "gamma", "delta", "epsilon", "zeta"}:  # in one order in all processes
        hidden = hidden @ tf.get_variable(name, [3, 3])
    outer = tf.get_variable("outer", [3, WIDTH], initializer=tf.zeros_initializer())
    tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(tf.square(hidden @ outer)))

parallax.parallel_run(graph, parallax_config=parallax.Config(workers=2))
