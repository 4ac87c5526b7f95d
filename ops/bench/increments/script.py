"""The job that `python -m ops.bench increments` runs: trains a table with Zipf ids by Adagrad, and saves increments.

`script.py ROWS WIDTH FOLDER INCREMENTS STEPS IDS`: saves every STEPS steps; the first and last checkpoints are full.
"""

import sys

import numpy as np
import tensorflow.compat.v1 as tf

import parallax

rows, width, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
increments, steps, per_step = (int(word) for word in sys.argv[4:7])

graph = tf.Graph()
with graph.as_default():
    ids = tf.placeholder(tf.int64, [per_step], name="ids")
    step = tf.train.get_or_create_global_step()
    table = tf.get_variable("table", [rows, width])
    dense = tf.get_variable("dense", [width, 64])
    loss = tf.reduce_mean(tf.square(tf.matmul(tf.nn.embedding_lookup(table, ids), dense) - 1.0))
    train = tf.train.AdagradOptimizer(0.1).minimize(loss, global_step=step)

saved = parallax.CheckPointConfig(folder, save_ckpt_steps=steps, whole_every=increments + 1, keep_last=None)
config = parallax.Config(seed=1, routes={"table": "alltoall"}, ckpt_config=saved)
sess, _, worker_id, _ = parallax.parallel_run(graph, parallax_config=config)

shares = np.cumsum(1.0 / np.arange(1, rows + 1))  # Zipf: row r is looked up 1 / (r + 1) times as often as row 0
draw = np.random.RandomState(worker_id)
with sess:
    for _ in range(increments * steps):
        sess.run(train, {ids: [np.searchsorted(shares, draw.rand(per_step) * shares[-1])]})
