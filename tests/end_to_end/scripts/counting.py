"""Workers count without waiting for each other: every gradient is a whole number, so what is lost would be seen.

Arguments: `count` (each looked-up row and the dense variable grow by one) or `adam`, and how many steps are made. The
last worker is slowed tenfold.
"""

import sys
import time

import numpy as np
import tensorflow.compat.v1 as tf

import parallax
from parallax.runtime.worker.barrier import wait_for_all
from parallax.runtime.worker.ranks import current_process_group

ROWS, STEPS, SLOWNESS = 11, int(sys.argv[2]), 10

made = {"count": lambda: tf.train.GradientDescentOptimizer(-1.0), "adam": lambda: tf.train.AdamOptimizer(0.01)}
graph = tf.Graph()
with graph.as_default():
    ids = tf.placeholder(tf.int64, [None], name="ids")
    step = tf.train.get_or_create_global_step()
    emb = tf.get_variable("emb", [ROWS, 2], initializer=tf.zeros_initializer())
    weights = tf.get_variable("weights", [3], initializer=tf.zeros_initializer())
    loss = tf.reduce_sum(tf.nn.embedding_lookup(emb, ids)) + tf.reduce_sum(weights)
    train = made[sys.argv[1]]().minimize(loss, global_step=step)


def batch(worker, number):
    """Ids of one step: row 0, which all workers touch in every step, and some that overlap."""
    return np.append(np.random.default_rng([worker, number]).integers(0, ROWS, 4), 0)


config = parallax.Config(run_option="PS", seed=3, partitions={"emb": 3})
sess, workers, worker, _ = parallax.parallel_run(graph, None, False, config)
with sess:
    pause_s = 0.0
    for number in range(STEPS):
        began_s = time.monotonic()
        sess.run(train, {ids: [batch(worker, number)]})
        if worker == workers - 1:
            time.sleep((SLOWNESS - 1) * (time.monotonic() - began_s))
    [so_far] = sess.run(step)
    print(f"{STEPS} steps done, {so_far} by all", flush=True)
    wait_for_all(current_process_group().workers)
    [counted], [pushed], [last] = sess.run([emb, weights, step])
if worker == workers - 1:  # a worker's copies of what it needs whole are as new as its own last step; this came last
    assert last == workers * STEPS, last
    if sys.argv[1] == "count":
        np.testing.assert_array_equal(pushed, [workers * STEPS] * 3)
if sys.argv[1] == "count":
    expected = np.zeros(ROWS)
    for one in range(workers):
        for number in range(STEPS):
            np.add.at(expected, batch(one, number), 1)
    np.testing.assert_array_equal(counted, np.stack([expected, expected], 1))
    print(f"row 0 counted {int(counted[0, 0])} times", flush=True)
else:
    assert np.isfinite(counted).all() and (counted < 0).all() and (pushed < 0).all(), (counted, pushed)
print("all good")
