"""One process that trains a driver's graph on the global batches of all workers: python joined.py DRIVER N FLAGS..."""

import runpy
import sys

import numpy as np
import tensorflow.compat.v1 as tf

driver, workers = runpy.run_path(sys.argv[1]), int(sys.argv[2])
FLAGS = driver["FLAGS"]
FLAGS([sys.argv[0], *sys.argv[3:]])
if FLAGS.v1_behavior:
    tf.disable_v2_behavior()
options = (FLAGS.fixed_samples,) if "fixed_samples" in FLAGS else ()
graph, ops = driver["build_model"](workers * FLAGS.batch_size, *options)
variables = {v.op.name: v for v in graph.get_collection("variables")}
with tf.Session(graph=graph) as sess:
    sess.run([v.initializer for v in variables.values()])
    for step in range(FLAGS.max_steps):
        batches = [driver["next_batch"](step, rank, FLAGS.batch_size) for rank in range(workers)]
        sess.run(ops["train_op"], {ops[name]: np.concatenate([b[name] for b in batches]) for name in batches[0]})
    np.savez(FLAGS.result, **sess.run(variables))
