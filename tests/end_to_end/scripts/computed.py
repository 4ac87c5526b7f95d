"""Trains a table and a dense weight with clipping, and writes what was computed in which type.

Arguments: the settings of parallax.Config as JSON, the file to write, how many steps, a JSON of session options.
"""

import json
import sys

import numpy as np
import tensorflow.compat.v1 as tf

import parallax

settings, file, steps = json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3])
options = tf.ConfigProto(**json.loads(sys.argv[4])) if len(sys.argv) > 4 else None
graph = tf.Graph()
with graph.as_default():
    tf.set_random_seed(7)
    ids = tf.placeholder(tf.int64, [None], name="ids")
    labels = tf.placeholder(tf.float32, [None, 8], name="labels")
    emb = tf.get_variable("emb", [11, 16])
    weights = tf.get_variable("weights", [16, 8])
    rows = tf.nn.embedding_lookup(emb, ids)
    product = rows @ weights
    seen = tf.maximum(product, labels - 1e6)  # a tensor that is fetched stays float32 itself
    loss = tf.reduce_mean(tf.square(product - labels))
    optimizer = tf.train.MomentumOptimizer(0.5, 0.5)
    gradients, variables = zip(*optimizer.compute_gradients(loss), strict=True)
    clipped, norm = tf.clip_by_global_norm(gradients, 0.5)
    train = optimizer.apply_gradients(zip(clipped, variables, strict=True))

config = parallax.Config(seed=3, sess_config=options, **settings)
sess, workers, worker, _ = parallax.parallel_run(graph, None, True, config)
with sess:
    losses = []
    for step in range(steps):
        draw = np.random.default_rng([step, worker])
        batch = {ids: [draw.integers(0, 11, 32)], labels: [draw.normal(size=(32, 8))]}
        told = tf.RunMetadata()
        _, [value] = sess.run([train, loss], batch, tf.RunOptions(output_partition_graphs=True), told)
        losses.append(value)
    [seen_value], [rows_value], [weights_value] = sess.run([seen, rows, weights], batch)
    [emb_value] = sess.run(emb)
    report = str(sess.exchange_report())
types = sorted(
    {
        f"{node.op} {tf.as_dtype(value.type).name}"
        for part in told.partition_graphs
        for node in part.node
        for value in node.attr.values()
        if value.type in (tf.float32.as_datatype_enum, tf.bfloat16.as_datatype_enum)
    }
)
if worker == 0:
    np.savez(
        file, losses=losses, seen=seen_value, rows=rows_value, weights=weights_value, emb=emb_value, types=types,
        report=report,
    )  # fmt: skip
