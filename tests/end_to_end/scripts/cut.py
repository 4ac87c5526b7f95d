"""Trains from the latest checkpoint on, and may be cut off: by a kill, in the middle of an accumulation or of a save.

Arguments: a folder for checkpoints, where it is cut (`never`, `accumulation`, `save` or `save of worker 1`), one of
the optimizers of the equality tests or `all`, and a file for the variables at the end. Each optimizer has a table that
is looked up, one in parts, and a dense layer. An update takes several batches of a dataset, of which an epoch is over
in the middle of one.
"""

import os
import signal
import sys

import numpy as np
import tensorflow.compat.v1 as tf

import parallax
from parallax.runtime.checkpoint import checkpoints
from parallax.runtime.checkpoint.format.writer import Writer
from parallax.runtime.checkpoint.hook import CheckpointHook
from tests.equality.models import OPTIMIZERS

ROWS, PARTS, BATCH, KEPT, LAST = 23, 13, 4, 3, 6
IN_ACCUMULATION, IN_SAVE = 3, 4  # the step at which the job is cut

folder, cut, chosen, file = sys.argv[1:]
names = list(OPTIMIZERS) if chosen == "all" else [chosen]
graph = tf.Graph()
with graph.as_default():
    examples = parallax.shard.shard(tf.data.Dataset.range(ROWS)).shuffle(ROWS).repeat(20).batch(BATCH)
    ids = tf.reshape(tf.cast(tf.data.make_one_shot_iterator(examples).get_next(), tf.int32), [BATCH])
    step = tf.train.get_or_create_global_step()
    trained = []
    for name in names:
        with tf.variable_scope(name.replace(" ", "_")):
            emb = tf.get_variable("emb", [ROWS, 4])
            parts = tf.get_variable("parts", [PARTS, 4], partitioner=tf.fixed_size_partitioner(3))
            weights = tf.get_variable("weights", [4, 1])
            rows = tf.nn.embedding_lookup(emb, ids) + tf.nn.embedding_lookup(parts, ids % PARTS)
            loss = tf.reduce_mean(tf.square(rows @ weights - 1.0))
            trained.append(OPTIMIZERS[name]().minimize(loss))
    with tf.control_dependencies(trained):
        tf.group(tf.assign_add(step, 1), name="train")

checkpoints.CHUNK_BYTES = 256 if chosen != "all" else 4096  # so that it is written in several pieces
scopes = [name.replace(" ", "_") for name in names]
config = parallax.Config(
    seed=7,
    accumulate_steps=KEPT,
    routes={f"{scope}/{table}": "alltoall" for scope in scopes for table in ("emb", "parts")},
    ckpt_config=parallax.CheckPointConfig(folder, save_ckpt_steps=2),
)
sess, _, worker_id, _ = parallax.parallel_run(graph, parallax_config=config)
flush = Writer._flush


def flush_or_die(writer):
    if writer.step == IN_SAVE and len(writer._parts) == 2 and (cut == "save" or worker_id == 1):
        os.kill(os.getpid(), signal.SIGKILL)
    flush(writer)


if cut.startswith("save"):
    Writer._flush = flush_or_die

with sess:
    beside = next(hook for hook in sess._monitored._hooks if isinstance(hook, CheckpointHook)).checkpoints.concurrent
    [now] = sess.run(step)
    while now < LAST:
        for kept in range(KEPT):
            sess.run("train")
            if cut == "accumulation" and now == IN_ACCUMULATION and worker_id == kept == 1:
                beside.join()
                os.kill(os.getpid(), signal.SIGKILL)
        [now] = sess.run(step)
    variables = graph.get_collection("variables")
    values = {v.op.name: value for v, [value] in zip(variables, sess.run(variables), strict=True)}
    if worker_id == 0:
        np.savez(file, **values)
