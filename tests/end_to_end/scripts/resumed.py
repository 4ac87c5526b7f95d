"""A loop that writes checkpoints by itself, and goes on from the latest when it is started again.

Arguments: a folder, the global step to train to, a route, and `steps=N` or `secs=S`.
"""

import sys

import numpy as np
import tensorflow.compat.v1 as tf

import parallax

folder, last, route, when = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4].split("=")

graph = tf.Graph()
with graph.as_default():
    tf.set_random_seed(7)
    ids = tf.placeholder(tf.int32, [4], name="ids")
    step = tf.train.get_or_create_global_step()
    emb = tf.get_variable("emb", [11, 4])
    weights = tf.get_variable("weights", [4, 1])
    loss = tf.reduce_mean(tf.square(tf.nn.embedding_lookup(emb, ids) @ weights - 1.0))
    train = tf.train.AdamOptimizer(0.1).minimize(loss, global_step=step)
    momentum = [v for v in tf.global_variables() if v.op.name == "emb/Adam"][0]
    reset = weights.initializer


class Started(tf.train.SessionRunHook):
    """What a hook finds when the session is there."""

    def after_create_session(self, session, coord):
        print(f"started at {session.run(step)}", flush=True)


config = parallax.Config(
    routes={"emb": route},
    hooks=[Started()],
    ckpt_config=parallax.CheckPointConfig(
        folder, **{f"save_ckpt_{when[0]}": (int if when[0] == "steps" else float)(when[1])}
    ),
)
sess, num_workers, worker_id, _ = parallax.parallel_run(graph, parallax_config=config)

with sess:
    [found], [slot], [own] = sess.run([emb, momentum, weights])
    print(f"found {np.abs(found).sum():.5f} {np.abs(slot).sum():.5f} {np.abs(own).sum():.5f}")
    while int(sess.run(step)) < last:
        sess.run(train, {ids: [[1, 2, 3, int(sess.run(step)) % 11]]})
        for _ in range(worker_id):  # runs of one worker alone, which no other waits for
            sess.run([weights, step])
    [left], [slot], [own] = sess.run([emb, momentum, weights])
    print(f"left {np.abs(left).sum():.5f} {np.abs(slot).sum():.5f} {np.abs(own).sum():.5f}", flush=True)
