"""A small model with an embedding, a dense layer and Adam, as a user's script has it.

`--batch N` makes the batch static; `--summed` makes the loss a sum over the batch, which the mean over workers is not,
and leaves layouts out;
`--dropout` draws random numbers for the rows of the batch. With `--drift` worker 1 changes its own copy of a variable;
the graph then has a count of its own samples besides.
"""

import argparse
import os

import numpy as np
import tensorflow.compat.v1 as tf

import parallax


class Drift(tf.train.SessionRunHook):
    """Adds to worker 1's copy of the weights before the second step."""

    def begin(self):
        self.add = tf.assign_add(tf.get_default_graph().get_collection("weights")[0], [[0.25]] * 4)

        self.runs = 0

    def before_run(self, context):
        self.runs += 1
        if self.runs == 2 and os.environ["OMPI_COMM_WORLD_RANK"] == "1":
            context.session.run(self.add)


def build(batch, summed, drift=False, dropout=False):
    graph = tf.Graph()
    with graph.as_default():
        tf.set_random_seed(7)
        ids = tf.placeholder(tf.int32, [batch], name="ids")
        labels = tf.placeholder(tf.float32, [batch, 1], name="labels")
        rate = tf.placeholder_with_default(0.05, [], name="rate")
        emb = tf.get_variable("emb", [11, 4])
        weights = tf.get_variable("weights", [4, 1])
        rows = tf.nn.embedding_lookup(emb, ids)
        errors = tf.square((tf.nn.dropout(rows, rate=0.3) if dropout else rows) @ weights - labels)
        loss = tf.reduce_sum(errors) if summed else tf.reduce_mean(errors)
        tf.add_to_collection("weights", weights)
        step = tf.train.create_global_step() if drift else None
        train = tf.train.AdamOptimizer(rate).minimize(loss, step)
        if drift:
            count = tf.get_variable("count", [], tf.int64, tf.zeros_initializer(), trainable=False)
            with tf.control_dependencies([tf.assign_add(count, tf.reduce_sum(tf.cast(ids, tf.int64)))]):
                train = tf.group(train, name="counted")
            tf.add_to_collection("train_op", train)
        tf.train.Saver()
    return graph, train, loss


def feeds(step, worker, num_workers):
    """What `parallax verify` feeds."""
    draw = np.random.default_rng([step, worker])
    return {"ids": draw.integers(0, 11, 6), "labels:0": draw.normal(size=(6, 1))}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int)
    parser.add_argument("--summed", action="store_true")
    parser.add_argument("--drift", action="store_true")
    parser.add_argument("--dropout", action="store_true")
    parser.add_argument("--plan")
    flags = parser.parse_args()
    tf.disable_v2_behavior()
    graph, train, loss = build(flags.batch, flags.summed, flags.drift, flags.dropout)
    layouts, hooks = False if flags.summed else None, [Drift()] if flags.drift else []
    config = parallax.Config(seed=3, plan_file=flags.plan, hooks=hooks, layouts=layouts)
    sess, num_workers, worker_id, _ = parallax.parallel_run(graph, None, True, config)
    with sess:
        for step in range(3):
            batch = {k.removesuffix(":0") + ":0": [v] for k, v in feeds(step, worker_id, num_workers).items()}
            _, [value] = sess.run([train, loss], batch)
        print(f"worker {worker_id} of {num_workers}: loss {value:.6f}")


if __name__ == "__main__":
    main()
