"""Builds a graph whose numbers nobody seeds: TensorFlow's old layers and cells, Keras layers, constants, a function.

Every process prints `built` with a drawn constant; every worker then `trained` with it and a digest of its variables.
"""

import hashlib
import os
import random

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow.compat.v1 as tf  # noqa: E402

import parallax  # noqa: E402

tf.disable_v2_behavior()
STEPS, WIDTH = 3, 6


def feeds(step, worker, num_workers):
    return {"ids": np.full([4, STEPS], 2 * step + worker)}


graph = tf.Graph()
with graph.as_default():
    ids = tf.placeholder(tf.int32, [None, STEPS], name="ids")
    table = tf.get_variable("table", [11, WIDTH])
    rows = tf.nn.embedding_lookup(table, ids)
    states, _ = tf.nn.dynamic_rnn(tf.nn.rnn_cell.BasicLSTMCell(5), rows, dtype=tf.float32)
    hidden = tf.layers.dense(states[:, -1], 7, activation=tf.nn.relu)
    hidden = keras.layers.Dense(4, activation="tanh")(hidden)
    drawn = tf.constant(random.random(), name="drawn")
    large = tf.constant(np.random.normal(size=[64, 16]), tf.float32, name="large")
    frozen = tf.get_variable("frozen", initializer=np.random.normal(size=[64, 4]).astype(np.float32), trainable=False)

    @tf.function
    def scaled(values):
        return values * tf.constant(1 + random.random())

    mixed = tf.matmul(large, frozen, transpose_a=True)
    loss = tf.reduce_mean(tf.square(tf.layers.dense(scaled(hidden), 1) - drawn)) + 1e-3 * tf.reduce_sum(mixed)
    tf.train.AdagradOptimizer(0.1).minimize(loss, name="train")
    with tf.Session(graph=graph) as alone:
        print("built", alone.run(drawn), flush=True)

sess, num_workers, worker_id, _ = parallax.parallel_run(graph, parallax_config=parallax.Config(seed=3, workers=2))
with sess:
    for step in range(2):
        sess.run("train", {"ids:0": [feeds(step, worker_id, 2)["ids"]]})
    variables = sess.run({v.op.name: v for v in graph.get_collection("variables")})
    constants = sess.run([drawn, large])
values = [value[0] for _, value in sorted(variables.items())] + [value[0] for value in constants]
digest = hashlib.sha256(b"".join(np.asarray(value).tobytes() for value in values)).hexdigest()
print("trained", len(variables), constants[0][0], digest, random.random() + np.random.random(), flush=True)
