"""The job that `python -m ops.bench memory` runs: a model that is nearly all table, trained, saved and restored.

`script.py ROWS WIDTH FOLDER OPTIMIZER`: trains from the last checkpoint of the folder, if there is one, to STEPS.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

import parallax
from parallax.optimizers import LazyAdamOptimizer
from parallax.runtime.measure.memory import peak_bytes

OPTIMIZERS = {"adagrad": tf.train.AdagradOptimizer, "lazy-adam": LazyAdamOptimizer}
STEPS, BATCH, IDS, HIDDEN = 20, 256, 10, 128


def build(rows: int, width: int, optimizer: str) -> Any:
    """Returns a graph of a table and two dense layers; the table and each slot take 4 · rows · width bytes."""
    graph = tf.Graph()
    with graph.as_default():
        ids = tf.placeholder(tf.int64, [BATCH, IDS], name="ids")
        table = tf.get_variable("table", [rows, width], initializer=tf.random_normal_initializer(0, 0.1))
        seen = tf.nn.embedding_lookup(table, ids, name="seen")
        w = tf.get_variable("w", [IDS * width, HIDDEN])
        out = tf.get_variable("out", [HIDDEN, 1])
        score = tf.nn.relu(tf.reshape(seen, [BATCH, IDS * width]) @ w) @ out
        step = tf.train.get_or_create_global_step()
        OPTIMIZERS[optimizer](0.001).minimize(tf.reduce_mean(tf.square(score - 1.0)), step, name="train")
        tf.reduce_sum(tf.abs(seen), name="digest")
    return graph


def main() -> None:
    """Trains, and prints the peak memory; workers also print the step and a sum over some rows, before and after."""
    rows, width, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    saved = parallax.CheckPointConfig(ckpt_dir=folder, save_ckpt_steps=STEPS)
    config = parallax.Config(seed=1, ckpt_config=saved, routes={"table": "alltoall"})
    try:
        sess, _, rank, _ = parallax.parallel_run(build(rows, width, sys.argv[4]), parallax_config=config)
    except SystemExit:  # the launcher, at the end of the job
        print(f"launcher peak {peak_bytes()}", flush=True)
        raise
    rng = np.random.default_rng(rank)
    some = {"ids:0": [np.arange(BATCH * IDS).reshape(BATCH, IDS) * (rows // (BATCH * IDS))]}
    with sess:
        [step], [digest] = sess.run(["global_step:0", "digest:0"], some)
        print(f"begins step {step} digest {digest:.6f}", flush=True)
        for _ in range(step, STEPS):
            [step], _ = sess.run(["global_step:0", "train"], {"ids:0": [rng.integers(0, rows, [BATCH, IDS])]})
        [step], [digest] = sess.run(["global_step:0", "digest:0"], some)
        print(f"ends step {step} digest {digest:.6f}", flush=True)
    print(f"peak {peak_bytes()}", flush=True)


if __name__ == "__main__":
    main()
