"""A job that is to be started again: FOLDER, the step to train to, at which step a worker waits once, FILE.

It waits to be killed. What is fed follows from the global step. Worker 0 writes all variables and slots to FILE at the
end.
"""

import os
import signal
import sys
from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf

import parallax

folder, last, fatal, file = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]

graph = tf.Graph()
with graph.as_default():
    ids = tf.placeholder(tf.int32, [4], name="ids")
    step = tf.train.get_or_create_global_step()
    emb = tf.get_variable("emb", [11, 4])
    weights = tf.get_variable("weights", [4, 1])
    loss = tf.reduce_mean(tf.square(tf.nn.embedding_lookup(emb, ids) @ weights - 1.0))
    train = tf.train.AdamOptimizer(0.1).minimize(loss, global_step=step)
    state = {v.op.name: v for v in tf.global_variables()}

config = parallax.Config(
    seed=3,
    stall_timeout_s=300,
    ckpt_config=parallax.CheckPointConfig(folder, save_ckpt_steps=4),
    restart=parallax.RestartConfig(max_restarts=2),
)
print("warm" if "PARALLAX_STAND_BY" in os.environ else "cold", flush=True)
sess, num_workers, worker, _ = parallax.parallel_run(graph, parallax_config=config)

with sess:
    while (now := int(sess.run(step))) < last:
        if now == fatal and worker == 1 and not (folder / "has waited").exists():
            (folder / "has waited").touch()
            print(f"rank 1 is process {os.getpid()}", flush=True)
            signal.pause()
        sess.run(train, {ids: [np.random.RandomState(now * num_workers + worker).randint(0, 11, 4)]})
    found = sess.run(state)
if worker == 0:
    np.savez(file, **{name: value[0] for name, value in found.items()})
