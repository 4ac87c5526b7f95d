"""A job with its state in the memory of hosts: FILE, the step to train to, RESOURCE (or `-`), HOSTS that must remain.

Then the rate of dropout, the seconds between two steps, STEP:WORKER pairs, where a worker waits to be killed, and
alone=TABLE for one whose rows are each on one host only.
Momentum on a table, Adam on another and on a dense layer; what is fed follows from the global step, and each worker has
its share of 12 samples. Worker 0 writes all variables and slots to FILE at the end.
"""

import os
import signal
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf

import parallax
from parallax.entry import api
from parallax.runtime.supervisor.limits import Limits

file, last, resource, least, rate, pause_s, *fatal = sys.argv[1:]
SAMPLES = 12

graph = tf.Graph()
with graph.as_default():
    ids = tf.placeholder(tf.int32, [None], name="ids")
    step = tf.train.get_or_create_global_step()
    emb = tf.get_variable("emb", [23, 4])
    other = tf.get_variable("other", [23, 4])
    weights = tf.get_variable("weights", [4, 4])
    rows = tf.nn.embedding_lookup(emb, ids) + tf.nn.embedding_lookup(other, ids)
    hidden = tf.nn.dropout(rows @ weights, rate=float(rate))
    loss = tf.reduce_mean(tf.square(hidden - 1.0))
    adam = tf.train.AdamOptimizer(0.1).minimize(loss, var_list=[other, weights], global_step=step)
    train = tf.group(adam, tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss, var_list=[emb]))
    state = {v.op.name: v for v in tf.global_variables()}


def within(launch, job, *arguments, **more):
    return launch(replace(job, limits=Limits(silent_s=5.0, word_s=1.0, unheard_s=12.0)), *arguments, **more)


api.launch = partial(within, api.launch)
alone = [word.partition("=")[2] for word in fatal if word.startswith("alone=")]
config = parallax.Config(
    variables={name: parallax.Variable(memory_hosts=1) for name in alone},
    seed=3,
    stall_timeout_s=300,
    ckpt_config=parallax.CheckPointConfig(memory_steps=1),
    restart=parallax.RestartConfig(max_restarts=4, min_hosts=int(least) if int(least) else None, no_spare=True),
)
sess, num_workers, worker, _ = parallax.parallel_run(graph, None if resource == "-" else resource, True, config)

with sess:
    while (now := int(sess.run(step))) < int(last):
        waited = Path(f"{file}.{now}")
        if f"{now}:{worker}" in fatal and not waited.exists():
            waited.touch()
            print(f"rank {worker} is process {os.getpid()}", flush=True)
            signal.pause()
        own = np.array_split(np.random.RandomState(now).randint(0, 23, SAMPLES), num_workers)[worker]
        sess.run(train, {ids: [own]})
        print(f"step {now} by {num_workers} workers", flush=True)
        time.sleep(float(pause_s))
    found = sess.run(state)
if worker == 0:
    np.savez(file, **{name: value[0] for name, value in found.items()})
