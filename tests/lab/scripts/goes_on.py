"""A job that loses a host: RESOURCE FOLDER LAST. Trains to a step, slowly, and says on how many workers."""

import sys
import time
from dataclasses import replace
from functools import partial

import numpy as np
import tensorflow.compat.v1 as tf

import parallax
from parallax.entry import api
from parallax.runtime.supervisor.limits import Limits

resource, folder, last = sys.argv[1], sys.argv[2], int(sys.argv[3])
LIMITS = Limits(silent_s=5.0, word_s=1.0, unheard_s=12.0)

graph = tf.Graph()
with graph.as_default():
    ids = tf.placeholder(tf.int32, [4], name="ids")
    step = tf.train.get_or_create_global_step()
    emb = tf.get_variable("emb", [11, 4])
    loss = tf.reduce_mean(tf.square(tf.nn.embedding_lookup(emb, ids) - 1.0))
    train = tf.train.AdagradOptimizer(0.1).minimize(loss, global_step=step)


def within(launch, job, *arguments, **more):
    return launch(replace(job, limits=LIMITS), *arguments, **more)


api.launch = partial(within, api.launch)
config = parallax.Config(
    seed=3,
    ckpt_config=parallax.CheckPointConfig(folder, save_ckpt_steps=2),
    restart=parallax.RestartConfig(max_restarts=3, min_hosts=1, no_spare=True),
)
sess, num_workers, worker, _ = parallax.parallel_run(graph, resource, parallax_config=config)
with sess:
    while (now := int(sess.run(step))) < last:
        sess.run(train, {ids: [np.arange(4) + now % 5]})
        print(f"step {now} by {num_workers} workers", flush=True)
        time.sleep(0.2)
