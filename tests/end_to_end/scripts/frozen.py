"""Trains on while a checkpoint of variables on servers is held up, and then while one is that is never written.

Arguments: a folder. No row is read before the workers have trained on, and yet both folders hold the same.
"""

import os
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf

import parallax
from parallax.runtime.checkpoint import checkpoints
from parallax.runtime.checkpoint.format.stored_tensors import OWN_KEYS
from parallax.runtime.checkpoint.format.writer import Writer
from parallax.runtime.checkpoint.hook import CheckpointHook

folder = Path(sys.argv[1])
graph = tf.Graph()
with graph.as_default():
    tf.set_random_seed(7)
    ids = tf.placeholder(tf.int32, [4], name="ids")
    step = tf.train.get_or_create_global_step()
    emb = tf.get_variable("emb", [23, 4])
    weights = tf.get_variable("weights", [4, 1])
    loss = tf.reduce_mean(tf.square(tf.nn.embedding_lookup(emb, ids) @ weights - 1.0))
    tf.train.AdamOptimizer(0.1).minimize(loss, global_step=step, name="train")

checkpoints.CHUNK_BYTES = 64  # four rows of the table: each round has some for each worker
config = parallax.Config(
    run_option="PS",
    partitions={"emb": 3, "weights": 2},
    ckpt_config=parallax.CheckPointConfig(folder / "beside", save_ckpt_steps=1000),
)
sess, _, rank, _ = parallax.parallel_run(graph, sys.argv[2], True, config)
saved = next(hook for hook in sess._monitored._hooks if isinstance(hook, CheckpointHook)).checkpoints
raw, begin, may_begin = sess._worker.raw, Writer.begin, threading.Event()


def begins_later(writer):
    assert Path(writer.folder).name == "stood" or may_begin.wait(60)
    begin(writer)


def train(steps):
    for number in range(steps):
        sess.run("train", {ids: [np.array([1, 2, number + 10, rank + 5]) % 23]})


def latest(name):
    reader = tf.train.load_checkpoint(str(folder / name))
    return {k: reader.get_tensor(k) for k in reader.get_variable_to_shape_map() if not k.startswith(OWN_KEYS)}


with sess:
    train(3)
    replace(saved.storage, folder=str(folder / "lagging")).save(raw, 3)  # of rows that lack updates
    Writer.begin = begins_later
    assert saved.concurrent.begin(raw, 3) == ""
    moved = replace(saved.storage, folder=str(folder / "stood")).save(raw, 3)
    assert moved.writers == (0, 1), moved
    train(20)
    may_begin.set()
    saved.concurrent.join()
    assert saved.concurrent.pop_result().writers == (0, 1)
    [now] = sess.run(emb)
    if rank == 0:
        lagging, stood, beside = latest("lagging"), latest("stood"), latest("beside")
        assert lagging.keys() == stood.keys() == beside.keys() and len(stood) == 9, stood.keys()
        for key, value in stood.items():
            np.testing.assert_array_equal(lagging[key], value, err_msg=key)
            np.testing.assert_array_equal(beside[key], value, err_msg=key)
        assert beside["global_step"] == 3 and not np.array_equal(now, beside["emb"])
    may_begin.clear()
    assert saved.concurrent.begin(raw, 23) == ""
    sess.workers.Barrier()
    print(f"rank {rank} is process {os.getpid()}", flush=True)
    train(100_000)
