"""Asynchronous workers of which none runs far ahead, the last of them slow; worker 0 writes checkpoints meanwhile.

Arguments: a folder for checkpoints, the staleness, and how many steps each worker makes.
"""

import sys
import time

import tensorflow.compat.v1 as tf

import parallax

folder, staleness, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
begins, ends = [], []  # of this worker's runs


class Times(tf.train.SessionRunHook):
    def before_run(self, run_context):
        begins.append(time.monotonic())

    def after_run(self, run_context, run_values):
        ends.append(time.monotonic())


graph = tf.Graph()
with graph.as_default():
    step = tf.train.get_or_create_global_step()
    weights = tf.get_variable("weights", [3], initializer=tf.zeros_initializer())
    train = tf.train.GradientDescentOptimizer(-1.0).minimize(tf.reduce_sum(weights), global_step=step)
saved = parallax.CheckPointConfig(folder, save_ckpt_steps=7)
config = parallax.Config(staleness=staleness, hooks=[Times()], ckpt_config=saved, seed=1)
sess, workers, worker, _ = parallax.parallel_run(graph, None, "bounded", config)
with sess:
    workers_comm = sess.workers.Dup()
    for _ in range(steps):
        sess.run(train)
        if worker == workers - 1:
            time.sleep(0.1)
leads = []  # how many more runs this worker has ended than another, whenever it begins one
for _, ended in workers_comm.allgather((begins, ends)):
    leads += [number - sum(end <= begun for end in ended) for number, begun in enumerate(begins)]
print(f"at most {max(leads)} runs ahead after {len(begins)}", flush=True)
