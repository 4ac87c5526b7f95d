"""Asynchronous workers of different speed, with checkpoints.

Arguments: a folder, steps of each worker, the step it starts at.
"""

import sys
import time

import numpy as np
import tensorflow.compat.v1 as tf

import parallax
from parallax.runtime.checkpoint import checkpoints

checkpoints.CHUNK_BYTES = 64  # so that both workers write rows of each variable
folder, steps, begun = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
graph = tf.Graph()
with graph.as_default():
    ids = tf.placeholder(tf.int32, [2], name="ids")
    emb = tf.get_variable("emb", [7, 4], initializer=tf.zeros_initializer())
    twin = tf.get_variable("twin", [7, 4], initializer=tf.zeros_initializer())
    step = tf.train.get_or_create_global_step()
    # Each push adds 1 to its rows of both.
    loss = -tf.reduce_sum(tf.nn.embedding_lookup(emb, ids)) - tf.reduce_sum(tf.nn.embedding_lookup(twin, ids))
    train = tf.train.MomentumOptimizer(1.0, 0.0).minimize(loss, global_step=step)

config = parallax.Config(run_option="PS", ckpt_config=parallax.CheckPointConfig(folder, save_ckpt_steps=6))
sess, num_workers, worker_id, _ = parallax.parallel_run(graph, None, False, config)
with sess:
    [found] = sess.run(emb)  # others may have begun to train
    assert np.all(found.sum(1) == found[:, 0] * 4) and found[:, 0].sum() >= 2 * begun
    for _ in range(steps):
        sess.run(train, {ids: [[worker_id, 5]]})
        time.sleep(0.01 * worker_id)
    [last] = sess.run(step)
    deadline = time.monotonic() + 60
    while last < begun + num_workers * steps and time.monotonic() < deadline:  # what the servers have, not its own copy
        time.sleep(0.05)
        [last] = sess.run(step)
    [found] = sess.run(emb)
    print(f"all have done {last}, with {int(found[:, 0].sum())} rows pushed", flush=True)
