"""Trains from the latest checkpoint on and keeps all variables, as found and as left. With `alone` in one process.

Each optimizer of the equality tests has a table that is looked up, one in parts, and a dense layer of its own.

Arguments: a folder for checkpoints, the global step to train to, a run option, the route of the tables, a file for the
variables, and a resource file or `-`; or, in one process on the global batches of such jobs: `alone`, a folder whose
checkpoint is read, the file, and for each job its number of workers and the step that it trains to.
"""

import sys

import numpy as np
import tensorflow.compat.v1 as tf

from tests.equality.models import OPTIMIZERS

ROWS, PARTS = 23, 13


def build():
    graph = tf.Graph()
    with graph.as_default():
        tf.set_random_seed(7)
        ids = tf.placeholder(tf.int32, [None], name="ids")
        step = tf.train.get_or_create_global_step()
        trained = []
        for name, optimizer in OPTIMIZERS.items():
            with tf.variable_scope(name.replace(" ", "_")):
                emb = tf.get_variable("emb", [ROWS, 4])
                parts = tf.get_variable("parts", [PARTS, 4], partitioner=tf.fixed_size_partitioner(3))
                weights = tf.get_variable("weights", [4, 1])
                rows = tf.nn.embedding_lookup(emb, ids) + tf.nn.embedding_lookup(parts, ids % PARTS)
                loss = tf.reduce_mean(tf.square(rows @ weights - 1.0))
                trained.append(optimizer().minimize(loss))
        with tf.control_dependencies(trained):
            tf.group(tf.assign_add(step, 1), name="train")
    return graph


def batch(step, worker_id):
    return np.array([1, 2, step, worker_id + 5]) % ROWS


def alone(folder, file, *jobs):
    """What one process finds in the latest checkpoint, and what it has after the same steps."""
    graph = build()
    values = {}
    with graph.as_default(), tf.Session() as sess:
        variables = tf.global_variables()
        tf.train.Saver().restore(sess, tf.train.latest_checkpoint(folder))
        values |= {f"found {v.op.name}": sess.run(v) for v in variables}
        tf.train.Saver().restore(sess, f"{folder}/model.ckpt-0")
        first = 0
        for workers, last in zip(map(int, jobs[::2]), map(int, jobs[1::2]), strict=True):
            for step in range(first, last):
                sess.run("train", {"ids:0": np.concatenate([batch(step, worker) for worker in range(workers)])})
            first = last
        values |= {f"left {v.op.name}": sess.run(v) for v in variables}
    np.savez(file, **values)


def together(folder, last, option, route, file, resource):
    import parallax

    graph = build()
    scopes = [name.replace(" ", "_") for name in OPTIMIZERS]
    config = parallax.Config(
        run_option=option,
        routes={f"{scope}/{table}": route for scope in scopes for table in ("emb", "parts")},
        partitions={f"{scope}/emb": 3 for scope in scopes} if option == "PS" else {},
        ckpt_config=parallax.CheckPointConfig(folder, save_ckpt_steps=2, keep_last=99),
    )
    sess, _, worker_id, _ = parallax.parallel_run(graph, None if resource == "-" else resource, True, config)
    with sess:
        variables = graph.get_collection("variables")
        values = {f"found {v.op.name}": value for v, [value] in zip(variables, sess.run(variables), strict=True)}
        for step in range(int(values["found global_step"]), last):
            sess.run("train", {"ids:0": [batch(step, worker_id)]})
        values |= {f"left {v.op.name}": value for v, [value] in zip(variables, sess.run(variables), strict=True)}
        if worker_id == 0:
            np.savez(file, **values)


if __name__ == "__main__":
    if sys.argv[1] == "alone":
        alone(*sys.argv[2:])
    else:
        together(sys.argv[1], int(sys.argv[2]), *sys.argv[3:7])
