"""The job that `python -m ops.bench replan` runs: trains a table whose route changes.

`script.py ROWS WIDTH FOLDER ROUTE STEPS PLAN ...`: the table starts with ROUTE. After every STEPS steps the job changes
to the next PLAN, and it trains STEPS more after the last change. A small table is always on servers, so that servers
exist. With a FOLDER other than `-` the job restores the checkpoint there, and writes one at the end. It prints when it
is ready to train and when it stops.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

import parallax

BATCH, IDS = 64, 10


def build(rows: int, width: int) -> Any:
    """Returns a graph of two tables and a dense layer, trained by Adagrad."""
    graph = tf.Graph()
    with graph.as_default():
        ids = tf.placeholder(tf.int64, [BATCH, IDS], name="ids")
        table = tf.get_variable("table", [rows, width], initializer=tf.random_normal_initializer(0, 0.1))
        small = tf.get_variable("small", [100, width], initializer=tf.random_normal_initializer(0, 0.1))
        seen = tf.nn.embedding_lookup(table, ids, name="seen") + tf.nn.embedding_lookup(small, ids % 100)
        out = tf.get_variable("out", [IDS * width, 1])
        score = tf.reshape(seen, [BATCH, IDS * width]) @ out
        loss = tf.reduce_mean(tf.square(score - 1.0), name="loss")
        tf.train.AdagradOptimizer(0.05).minimize(loss, tf.train.get_or_create_global_step(), name="train")
        tf.reduce_sum(tf.abs(seen), name="digest")
    return graph


def main() -> None:
    """Trains and changes plans; prints every loss, and a final sum over rows of the tables."""
    rows, width, folder, route, steps = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:5], int(sys.argv[5])
    saved = parallax.CheckPointConfig() if folder == "-" else parallax.CheckPointConfig(folder, save_ckpt_steps=2**31)
    sess, _, rank, _ = parallax.parallel_run(
        build(rows, width),
        parallax_config=parallax.Config(seed=1, routes={"table": route, "small": "ps"}, ckpt_config=saved),
    )
    print(f"ready {time.monotonic()}", flush=True)
    rng = np.random.default_rng(rank)
    with sess:
        [trained] = sess.run(["global_step:0"])
        for _ in range(int(np.ravel(trained)[0])):
            rng.integers(0, rows, [BATCH, IDS])  # repeats the draws of earlier steps
        for plan in [*sys.argv[6:], None]:
            for _ in range(steps):
                [loss], _ = sess.run(["loss:0", "train"], {"ids:0": [rng.integers(0, rows, [BATCH, IDS])]})
                print(f"loss {loss:.9g}", flush=True)
            if plan is not None:
                sess.change_plan(plan)
        some = (np.arange(BATCH * IDS) * (rows // (BATCH * IDS))).reshape(BATCH, IDS)
        [digest] = sess.run("digest:0", {"ids:0": [some]})
        print(f"digest {digest:.9g}", flush=True)
        print(f"stops {time.monotonic()}", flush=True)


if __name__ == "__main__":
    main()
