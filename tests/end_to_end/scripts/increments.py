"""A loop that writes increments after every step, and goes on from where the folder is.

Arguments: a folder, the global step to train to, a route of the tables, and a resource file, if any.
"""

import sys

import numpy as np
import tensorflow.compat.v1 as tf

import parallax

folder, last, route = sys.argv[1], int(sys.argv[2]), sys.argv[3]
resource = sys.argv[4] if len(sys.argv) > 4 else None

graph = tf.Graph()
with graph.as_default():
    tf.set_random_seed(7)
    ids = tf.placeholder(tf.int32, [3], name="ids")
    step = tf.train.get_or_create_global_step()
    emb = tf.get_variable("emb", [23, 4])
    parted = tf.get_variable("parted", [13, 4], partitioner=tf.fixed_size_partitioner(2))
    moved = tf.get_variable("moved", [9, 4])  # by Adam: rows that no gradient touches change too
    weights = tf.get_variable("weights", [4, 1])
    rows = tf.nn.embedding_lookup(emb, ids) + tf.nn.embedding_lookup(parted, ids % 13)
    rows += tf.nn.embedding_lookup(moved, ids % 9)
    loss = tf.reduce_mean(tf.square(rows @ weights - 1.0))
    by_row = tf.train.AdagradOptimizer(0.1).minimize(loss, var_list=[emb, *parted, weights], global_step=step)
    train = tf.group(by_row, tf.train.AdamOptimizer(0.1).minimize(loss, var_list=[moved]))

saved = parallax.CheckPointConfig(folder, save_ckpt_steps=1, whole_every=100, keep_last=None)
config = parallax.Config(routes={"emb": route, "parted": route}, ckpt_config=saved)
sess, num_workers, worker_id, _ = parallax.parallel_run(graph, resource, parallax_config=config)

with sess:
    values = [np.abs(value).sum() for [value] in sess.run([emb, *parted, moved, weights])]
    print("found", *(f"{value:.5f}" for value in values))
    while (now := int(sess.run(step)[0])) < last:
        sess.run(train, {ids: [[now % 23, 1 + worker_id, 22]]})
    values = [np.abs(value).sum() for [value] in sess.run([emb, *parted, moved, weights])]
    print("left", *(f"{value:.5f}" for value in values), flush=True)
