"""Trains two tables and a dense layer, one table by Adam and the rest by Adagrad; fed, or from a dataset.

Arguments: settings of parallax.Config as JSON, `fed` or `data`, the kind of variables, and how many steps. At the end
worker 0 prints the losses and ids of its steps, what a hook saw, and all variables.
"""

import json
import sys

import numpy as np
import tensorflow.compat.v1 as tf

import parallax
from parallax import shard

ROWS, WIDTH, BATCH = 2000, 8, 12
SETTINGS, SOURCE, KIND, STEPS = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])


def feeds(step, worker, num_workers):
    """What a verification feeds."""
    draw = np.random.default_rng([step, worker])
    return {"ids": draw.integers(0, 300, BATCH), "labels": draw.normal(size=[BATCH, 1]).astype(np.float32)}


class Seen(tf.train.SessionRunHook):
    """Holds a tensor of the graph, and asks for it in every run."""

    def __init__(self, tensor):
        self.tensor = tensor
        self.values = []

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(self.tensor)

    def after_run(self, run_context, run_values):
        self.values.append(float(run_values.results))


def build():
    tf.set_random_seed(7)
    if SOURCE == "fed":
        ids = tf.placeholder(tf.int64, [None], name="ids")
        labels = tf.placeholder(tf.float32, [None, 1], name="labels")
        noise = 0.0
    else:
        numbers = shard.shard(tf.data.Dataset.range(10_000)).map(lambda n: n * n % 300).batch(BATCH, True)
        ids = tf.data.make_one_shot_iterator(numbers).get_next()
        labels = tf.cast(ids[:, None] % 5, tf.float32)
        noise = tf.random_normal([BATCH, 1], stddev=0.01, name="noise")
    step = tf.train.get_or_create_global_step()
    resource = KIND == "resource"
    emb = tf.get_variable("emb", [ROWS, WIDTH], use_resource=resource)
    other = tf.get_variable("other", [ROWS // 2, WIDTH], use_resource=resource)
    weights = tf.get_variable("weights", [WIDTH, 1], use_resource=resource)
    rows = tf.nn.embedding_lookup(emb, ids) + tf.nn.embedding_lookup(other, ids // 2)
    loss = tf.reduce_mean(tf.square(rows @ weights - labels + noise), name="loss")
    one = tf.train.AdamOptimizer(0.05).minimize(loss, global_step=step, var_list=[emb])
    whole = tf.reduce_sum(emb, name="whole")
    two = tf.train.AdagradOptimizer(0.1).minimize(loss, var_list=[other, weights])
    return ids, loss, step, whole, tf.group(one, two, name="train")


def main():
    graph = tf.Graph()
    with graph.as_default():
        ids, loss, step, whole, train = build()
    hook = Seen(whole)
    ckpt = parallax.CheckPointConfig(**SETTINGS.pop("ckpt_config", {}))
    config = parallax.Config(seed=3, hooks=[hook], ckpt_config=ckpt, **SETTINGS)
    sess, num_workers, worker_id, _ = parallax.parallel_run(graph, parallax_config=config)
    lines = []
    with sess:
        for number in range(STEPS):
            fed = feeds(number, worker_id, num_workers) if SOURCE == "fed" else {}
            batch = {f"{name}:0": [value] for name, value in fed.items()}
            [loss_value], [of_ids], [at], _ = sess.run([loss, ids, step, train], batch)
            lines.append([float(loss_value), int(of_ids[0]), int(at)])
        saw = hook.values[:]
        with graph.as_default():
            values = {v.op.name: value.tolist() for v, [value] in zip(*both(sess), strict=True)}
        report = str(sess.exchange_report())
    if worker_id == 0:
        print("steps", json.dumps(lines))
        print("hook", json.dumps(saw))
        print("values", json.dumps(values))
        print(report)


def both(sess):
    """All variables, and what they are."""
    variables = tf.global_variables()
    return variables, sess.run(variables)


if __name__ == "__main__":
    main()
