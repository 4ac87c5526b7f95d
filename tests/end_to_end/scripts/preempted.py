"""Trains from the latest checkpoint on, slowly, and keeps all variables as they are at the end.

Arguments: a folder for checkpoints, the global step to train to, seconds between steps, a file for the variables.
"""

import sys
import time

import numpy as np
import tensorflow.compat.v1 as tf

import parallax

folder, last, pause_s, file = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
graph = tf.Graph()
with graph.as_default():
    tf.set_random_seed(7)
    ids = tf.placeholder(tf.int32, [4], name="ids")
    step = tf.train.get_or_create_global_step()
    emb = tf.get_variable("emb", [23, 4])
    weights = tf.get_variable("weights", [4, 1])
    loss = tf.reduce_mean(tf.square(tf.nn.embedding_lookup(emb, ids) @ weights - 1.0))
    tf.train.AdamOptimizer(0.1).minimize(loss, global_step=step, name="train")

config = parallax.Config(
    routes={"emb": "alltoall"}, ckpt_config=parallax.CheckPointConfig(folder, save_ckpt_steps=1_000_000), seed=1
)
sess, _, worker, _ = parallax.parallel_run(graph, parallax_config=config)
try:
    with sess:
        [begun] = sess.run(step)
        print(f"begins at {begun}", flush=True)
        for number in range(begun, last):
            sess.run("train", {"ids:0": [np.array([1, 2, number, worker + 5]) % 23]})
            time.sleep(pause_s * (1 + worker))
            if number == 10:
                print("is in the middle", flush=True)
        values = {v.op.name: sess.run(v)[0] for v in graph.get_collection("variables")}
        if worker == 0:
            np.savez(file, **values)
finally:
    print("cleans up", flush=True)
