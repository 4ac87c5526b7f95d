"""One worker alone is traced, and the learning rate is a placeholder's default, which TensorFlow takes for a constant.

Argument: the folder of the traces.
"""

import sys

import numpy as np
import tensorflow.compat.v1 as tf

import parallax

graph = tf.Graph()
with graph.as_default():
    tf.set_random_seed(7)
    ids = tf.placeholder(tf.int32, [None], name="ids")
    rate = tf.placeholder_with_default(0.05, [], name="rate")
    emb = tf.get_variable("emb", [11, 4])
    loss = tf.reduce_mean(tf.square(tf.nn.embedding_lookup(emb, ids) - 1.0))
    train = tf.train.AdamOptimizer(rate).minimize(loss)
traced = parallax.ProfileConfig(sys.argv[1], [3, 5], profile_worker=0)
config = parallax.Config(seed=3, stall_timeout_s=60, profile_config=traced)
sess, _, _, _ = parallax.parallel_run(graph, None, True, config)
with sess:
    for _ in range(9):
        sess.run([train, loss], {ids: [np.arange(5, dtype=np.int32)]})
print("all good")
