"""A small model with an embedding, a dense layer and Adam, as a user's script has it.

`--batch N` makes the batch static; `--summed` makes the loss a sum over the batch, which the mean over workers is not.
"""

import argparse

import numpy as np
import tensorflow.compat.v1 as tf

import parallax


def build(batch, summed):
    graph = tf.Graph()
    with graph.as_default():
        tf.set_random_seed(7)
        ids = tf.placeholder(tf.int32, [batch], name="ids")
        labels = tf.placeholder(tf.float32, [batch, 1], name="labels")
        rate = tf.placeholder_with_default(0.05, [], name="rate")
        emb = tf.get_variable("emb", [11, 4])
        weights = tf.get_variable("weights", [4, 1])
        errors = tf.square(tf.nn.embedding_lookup(emb, ids) @ weights - labels)
        loss = tf.reduce_sum(errors) if summed else tf.reduce_mean(errors)
        train = tf.train.AdamOptimizer(rate).minimize(loss)
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
    parser.add_argument("--plan")
    flags = parser.parse_args()
    tf.disable_v2_behavior()
    graph, train, loss = build(flags.batch, flags.summed)
    config = parallax.Config(seed=3, plan_file=flags.plan)
    sess, num_workers, worker_id, _ = parallax.parallel_run(graph, None, True, config)
    with sess:
        for step in range(3):
            batch = {k.removesuffix(":0") + ":0": [v] for k, v in feeds(step, worker_id, num_workers).items()}
            _, [value] = sess.run([train, loss], batch)
        print(f"worker {worker_id} of {num_workers}: loss {value:.6f}")


if __name__ == "__main__":
    main()
