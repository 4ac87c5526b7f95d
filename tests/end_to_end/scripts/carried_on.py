"""Trains from the latest checkpoint on and keeps all variables, as found and as left. With `alone` in one process.

Arguments: a folder for checkpoints, the global step to train to, a run option, the route of the table, a file for the
variables; or: `alone`, the folder, the file.
"""

import sys

import numpy as np
import tensorflow.compat.v1 as tf


def build():
    """A table that is looked up, one in parts, and a dense layer."""
    graph = tf.Graph()
    with graph.as_default():
        tf.set_random_seed(7)
        ids = tf.placeholder(tf.int32, [4], name="ids")
        step = tf.train.get_or_create_global_step()
        emb = tf.get_variable("emb", [23, 4])
        parts = tf.get_variable("parts", [13, 4], partitioner=tf.fixed_size_partitioner(3))
        weights = tf.get_variable("weights", [4, 1])
        rows = tf.nn.embedding_lookup(emb, ids) + tf.nn.embedding_lookup(parts, ids % 13)
        loss = tf.reduce_mean(tf.square(rows @ weights - 1.0))
        tf.train.AdamOptimizer(0.1).minimize(loss, global_step=step, name="train")
    return graph


def alone(folder, file):
    """What one process without the project finds in the latest checkpoint."""
    graph = build()
    with graph.as_default(), tf.Session() as sess:
        tf.train.Saver().restore(sess, tf.train.latest_checkpoint(folder))
        np.savez(file, **{f"found {v.op.name}": sess.run(v) for v in tf.global_variables()})


def together(folder, last, option, route, file):
    import parallax

    graph = build()
    config = parallax.Config(
        run_option=option,
        routes={"emb": route, "parts": route},
        partitions={"emb": 3, "weights": 2} if option == "PS" else {},
        ckpt_config=parallax.CheckPointConfig(folder, save_ckpt_steps=2),
    )
    sess, _, worker_id, _ = parallax.parallel_run(graph, sys.argv[6] if len(sys.argv) > 6 else None, True, config)
    with sess:
        values = {f"found {v.op.name}": sess.run(v)[0] for v in graph.get_collection("variables")}
        for step in range(int(values["found global_step"]), last):
            sess.run("train", {"ids:0": [np.array([1, 2, step, worker_id + 5]) % 23]})
        values.update({f"left {v.op.name}": sess.run(v)[0] for v in graph.get_collection("variables")})
        if worker_id == 0:
            np.savez(file, **values)


if __name__ == "__main__":
    if sys.argv[1] == "alone":
        alone(sys.argv[2], sys.argv[3])
    else:
        together(sys.argv[1], int(sys.argv[2]), *sys.argv[3:6])
