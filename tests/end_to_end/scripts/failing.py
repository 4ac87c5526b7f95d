"""A training loop in which something goes wrong on rank 1. Arguments: what, and the route of the table."""

import os
import sys
import time

import tensorflow.compat.v1 as tf

import parallax

tf.disable_v2_behavior()
what, route = (*sys.argv[1:], "alltoall")[:2]

if what == "leaves early" and os.environ.get("OMPI_COMM_WORLD_RANK") == "1":
    sys.exit(0)

graph = tf.Graph()
with graph.as_default():
    ids = tf.placeholder(tf.int32, [None], name="ids")
    emb = tf.get_variable("emb", [11, 4])
    weights = tf.get_variable("weights", [4, 1])
    scale = tf.placeholder_with_default(1.0, [], name="scale")
    rows = tf.check_numerics(tf.nn.embedding_lookup(emb, ids) * scale, "rows")  # after the pull, before the push
    loss = tf.reduce_mean(tf.square(rows @ weights - 1.0))
    train = tf.train.AdamOptimizer(0.1).minimize(loss)
    scores = tf.reduce_sum(tf.matmul(emb, weights), name="scores")

config = parallax.Config(seed=3, stall_timeout_s=6, routes={"emb": route})
sess, num_workers, worker_id, _ = parallax.parallel_run(graph, parallax_config=config)


def step(*more, factor=1.0):
    """One step, of ids that both ranks have."""
    sess.run(train, {ids: [[worker_id, 2, *more]], scale: [factor]})


class DataEnded(Exception):
    """What a reader of the user's may raise."""


with sess:
    for _ in range(3):
        step()
    print(f"rank {worker_id} is process {os.getpid()}", flush=True)
    if what == "raises" and worker_id == 1:
        raise DataEnded("no line 4711 in the corpus")
    if what == "exits" and worker_id == 1:
        sys.exit(3)
    if what == "asks for row 11":
        step(11 if worker_id else 3)
    if what == "evaluates alone" and worker_id == 0:
        sess.run([scores, loss], {ids: [[1]]})
    if what == "ends its loop" and worker_id == 1:
        raise tf.errors.OutOfRangeError(None, None, "no more lines")
    if what == "catches" and worker_id == 1:
        try:
            step(factor=float("nan"))
        except tf.errors.InvalidArgumentError:
            print("caught", flush=True)
    while True:
        step()
        time.sleep(0.01)
