"""Trains a table whose rows are owned by a plan file: owned.py PLAN CHECKPOINTS STEPS

Every step looks up every row once, so that predicted and counted bytes are equal for any pattern that divides the rows.
"""

import sys

import numpy as np
import tensorflow.compat.v1 as tf

import parallax

ROWS, WIDTH = 24, 3
plan, folder, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])

graph = tf.Graph()
with graph.as_default():
    ids = tf.placeholder(tf.int32, [ROWS], "ids")
    y = tf.placeholder(tf.float32, [ROWS, 1], "y")
    table = tf.get_variable("emb", [ROWS, WIDTH])
    found = tf.nn.embedding_lookup(table, ids)
    loss = tf.reduce_mean(tf.square(tf.reduce_sum(found, 1, keepdims=True) - y))
    step = tf.train.get_or_create_global_step()
    train = tf.train.AdagradOptimizer(0.3).minimize(loss, step)
    given = tf.placeholder(tf.float32, [ROWS, WIDTH], "given")
    assign = tf.assign(table, given)

config = parallax.Config(
    seed=3,
    plan_file=None if plan == "-" else plan,
    routes={"emb": "alltoall"} if plan == "-" else {},
    ckpt_config=parallax.CheckPointConfig(folder, save_ckpt_steps=2),
)
sess, workers, rank, _ = parallax.parallel_run(graph, "localhost", parallax_config=config)
with sess:
    print(f"before {np.asarray(sess.run(table)[0]).round(5).tolist()}")
    for number in range(steps):
        order = np.random.RandomState(rank + 10 * number).permutation(ROWS)
        sess.run(train, {ids: [order], y: [np.sin(order)[:, None]]})
    print(f"after {np.asarray(sess.run(table)[0]).round(5).tolist()}")
    report = sess.exchange_report()
    print(f"bytes {report.predicted_bytes} {report.counted_bytes}")
    held = np.asarray(sess.run(table)[0])
    sess.run(assign, {given: [np.arange(ROWS * WIDTH).reshape(ROWS, WIDTH)]})
    print(f"assigned {(np.asarray(sess.run(table)[0]).ravel() == np.arange(ROWS * WIDTH)).all()}")
    sess.run(assign, {given: [held]})
