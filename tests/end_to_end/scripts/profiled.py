"""A few steps on tables of every kind: fed Zipf ids, two lookups of one table, parts, sampled candidates, a shard.

At the end worker 0 prints what the exchanges counted, and a digest of all variables.
"""

import hashlib

import numpy as np
import tensorflow.compat.v1 as tf

import parallax
from parallax import shard

ROWS, WIDTH, STEPS = 60, 4, 6


def feeds(step, worker, num_workers):
    """What `parallax profile` feeds, and the loop below."""
    draw = np.random.default_rng([step, worker])
    return {"ids": np.minimum(draw.zipf(1.2, 14), ROWS) - 1}


def build():
    graph = tf.Graph()
    with graph.as_default():
        ids = tf.placeholder(tf.int64, [None], name="ids")
        numbers = shard.shard(tf.data.Dataset.range(1000)).map(lambda n: n * n % ROWS).batch(10)
        read = tf.data.make_one_shot_iterator(numbers).get_next()
        tied = tf.get_variable("tied", [ROWS, WIDTH], initializer=tf.ones_initializer())
        parts = tf.get_variable(
            "parts", [ROWS, WIDTH], initializer=tf.zeros_initializer(), partitioner=tf.fixed_size_partitioner(2)
        )
        weights = tf.get_variable("weights", [ROWS, WIDTH], initializer=tf.ones_initializer())
        biases = tf.get_variable("biases", [ROWS], initializer=tf.zeros_initializer())
        dense = tf.get_variable("dense", [WIDTH, WIDTH], initializer=tf.ones_initializer())
        hidden = tf.nn.embedding_lookup(tied, ids) @ dense
        loss = tf.reduce_mean(tf.nn.sampled_softmax_loss(weights, biases, ids[:, None], hidden, 8, ROWS))
        loss += tf.reduce_mean(tf.square(tf.nn.embedding_lookup(tied, read) - 0.5))
        loss += tf.reduce_mean(tf.square(tf.nn.embedding_lookup(parts, read) - 0.5))
        train = tf.train.AdagradOptimizer(0.2).minimize(loss)
    return graph, train


class Counting(tf.train.SessionRunHook):
    """Adds to the graph when it begins, which the profile's fingerprint must not see."""

    def begin(self):
        self._constant = tf.constant(1, name="of_a_hook")


def main():
    tf.disable_v2_behavior()
    graph, train = build()
    config = parallax.Config(seed=3, hooks=[Counting()])
    sess, num_workers, worker_id, _ = parallax.parallel_run(graph, parallax_config=config)
    with sess:
        for step in range(STEPS):
            sess.run(train, {"ids:0": [feeds(step, worker_id, num_workers)["ids"]]})
        report = sess.exchange_report()
        with graph.as_default():
            values = [value for [value] in sess.run(tf.global_variables())]
    if worker_id == 0:
        print("touched", dict(report.touched_rows))
        print("variables", hashlib.sha256(b"".join(value.tobytes() for value in values)).hexdigest())


if __name__ == "__main__":
    main()
