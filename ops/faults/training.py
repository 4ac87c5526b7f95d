"""A trial's job that trains until it is ended: `python -m ops.faults.training MARK local|RESOURCE_FILE KIND FOLDER`.

It is a user's script: an embedding table and a dense layer, with checkpoints in FOLDER. Only the silence limits are
shorter than a user's; the launcher here sets them.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from typing import Any
from unittest import mock

import numpy as np

import parallax
from ops.faults.job import launch_within
from ops.faults.random_trials import TRAINING
from parallax.entry import api
from parallax.runtime.launcher.launch import launch
from parallax.runtime.supervisor.limits import Limits

LIMITS = Limits(beat_s=1.0, stopped_s=4.0, silent_s=10.0, word_s=1.0, unheard_s=12.0)
CHECKPOINT_STEPS = 20
GRACE_S = 80.0  # to save when preempted, even during its start and beside other jobs
ROWS, WIDTH, IDS = 20_000, 8, 256
_PAUSE_S = 0.05  # between steps: other jobs share the machine


def main() -> None:
    """Trains for ever."""
    _, where, kind, folder = sys.argv[1:]
    config = parallax.Config(
        workers=sum(TRAINING[0].workers),
        run_option="HYBRID" if kind == "workers" else "PS",
        ckpt_config=parallax.CheckPointConfig(folder, CHECKPOINT_STEPS, keep_last=2, preemption_grace_s=GRACE_S),
        seed=1,
    )
    graph, draw = build_graph(), np.random.RandomState(1)
    mock.patch.object(api, "launch", partial(launch_within, LIMITS, launch)).start()
    resource = None if where == "local" else where
    sess, *_ = parallax.parallel_run(graph, resource, sync=kind != "asynchronous", parallax_config=config)
    with sess:
        while True:
            sess.run("train", {"ids:0": [draw.randint(0, ROWS, IDS)]})
            time.sleep(_PAUSE_S)


def build_graph() -> Any:
    """Builds a graph that looks up ids in a table, and trains by an op `train`."""
    import tensorflow.compat.v1 as tf

    graph = tf.Graph()
    with graph.as_default():
        ids = tf.placeholder(tf.int64, [IDS], name="ids")
        table = tf.get_variable("table", [ROWS, WIDTH])
        dense = tf.get_variable("dense", [WIDTH, 1])
        loss = tf.reduce_mean(tf.square(tf.matmul(tf.nn.embedding_lookup(table, ids), dense) - 1.0))
        step = tf.train.get_or_create_global_step()
        tf.train.AdagradOptimizer(0.1).minimize(loss, global_step=step, name="train")
    return graph


if __name__ == "__main__":
    main()
