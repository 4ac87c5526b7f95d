"""Trains in islands, and prints what this host sends for an update, in parts of the bytes of what islands average.

islands.py EVERY FILE WIRE_DTYPE: updates between two meetings, the resource file, and `Islands.wire_dtype` or nothing.
"""

import sys
from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf

import parallax

WIDTH, TABLE_ROWS, TABLE_WIDTH, TOUCHED, MEETINGS = 512, 4000, 64, 200, 6


def build():
    graph = tf.Graph()
    with graph.as_default():
        x = tf.placeholder(tf.float32, [None, WIDTH], name="x")
        ids = tf.placeholder(tf.int64, [None], name="ids")
        rows = tf.nn.embedding_lookup(tf.get_variable("table", [TABLE_ROWS, TABLE_WIDTH]), ids)
        h = tf.tanh(x @ tf.get_variable("w", [WIDTH, WIDTH]))
        loss = tf.reduce_mean(tf.square(h)) + tf.reduce_mean(tf.square(rows))
        tf.train.AdagradOptimizer(0.1).minimize(loss, name="train")
    return graph


def sent_bytes():
    lines = Path("/proc/net/dev").read_text().splitlines()[2:]
    return sum(int(words[9]) for words in (line.replace(":", " ").split() for line in lines) if words[0] != "lo")


def main():
    every, wire_dtype = int(sys.argv[1]), sys.argv[3] or None
    config = parallax.Config(
        islands=parallax.Islands(every=every, wire_dtype=wire_dtype), routes={"table": "alltoall"}, seed=1
    )
    session, _, worker, _ = parallax.parallel_run(build(), sys.argv[2], parallax_config=config)
    x = np.ones([4, WIDTH], np.float32)
    with session:
        for meeting in range(MEETINGS + 1):
            if meeting == 1:  # all connections are there
                session.workers.Barrier()
                before = sent_bytes()
            for _ in range(every):  # TOUCHED rows between two meetings, of which islands share half
                ids = np.arange(TOUCHED) + TOUCHED // 2 * worker + meeting * 2 * TOUCHED
                session.run("train", {"x:0": [x], "ids:0": [ids]})
        session.workers.Barrier()
        sent = sent_bytes() - before
    dense, bits = (4 if wire_dtype is None else 2) * WIDTH * WIDTH, TABLE_ROWS / 8
    rows = 3 * TOUCHED // 2 * 4 * TABLE_WIDTH
    expected = MEETINGS * (dense + rows + bits)  # 2 (p - 1) / p is 1 for two islands
    print(f"worker {worker} sent {sent} expected {expected:.0f}", flush=True)


if __name__ == "__main__":
    main()
