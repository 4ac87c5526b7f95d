"""Two workers fetch other parts of what travels together: the train_op and a gradient, or two gradients."""

import sys

import numpy as np
import tensorflow.compat.v1 as tf

import parallax


def build():
    graph = tf.Graph()
    with graph.as_default():
        x = tf.placeholder(tf.float32, [4, 3], name="x")
        hidden = tf.tanh(x @ tf.get_variable("a", [3, 3]))
        loss = tf.reduce_mean(tf.square(hidden @ tf.get_variable("b", [3, 1])), name="loss")
        optimizer = tf.train.GradientDescentOptimizer(0.1)
        pairs = optimizer.compute_gradients(loss)
        for number, (gradient, _) in enumerate(pairs):
            tf.multiply(gradient, 1.0, name=f"gradient_{number}")
        optimizer.apply_gradients(pairs, name="train")
    return graph


config = parallax.Config(seed=1, stall_timeout_s=5, guard=False)
session, _, rank, _ = parallax.parallel_run(build(), parallax_config=config)
feeds = {"x:0": [np.ones((4, 3), np.float32)]}
with session:
    session.run("train", feeds)
    session.run("gradient_0:0", feeds)
    print("alike")
    session.run("gradient_0:0" if rank else sys.argv[1], feeds)
    print("went on")
