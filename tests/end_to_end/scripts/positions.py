"""Trains on a dataset in the graph and on feeds, with dropout; prints the losses, and which examples were seen.

Arguments: a folder for checkpoints, the global step to train to, how many batches an update takes, after how many runs
the loop ends before, and the optimizer (Adam, if none is named).
"""

import sys

import numpy as np
import tensorflow.compat.v1 as tf

import parallax

folder, last, kept, runs = sys.argv[1], *map(int, sys.argv[2:5])
optimizer = sys.argv[5] if len(sys.argv) > 5 else "Adam"
EXAMPLES, BATCH = 96, 2

graph = tf.Graph()
with graph.as_default():
    examples = parallax.shard.shard(tf.data.Dataset.range(EXAMPLES)).shuffle(EXAMPLES).batch(BATCH)
    numbers = tf.data.make_one_shot_iterator(examples).get_next()
    noise = tf.data.make_initializable_iterator(tf.data.Dataset.range(1000).shuffle(1000).repeat())
    noise_number = noise.get_next()
    fed = tf.placeholder(tf.float32, [BATCH], name="fed")
    step = tf.train.get_or_create_global_step()
    emb = tf.get_variable("emb", [EXAMPLES, 4])
    weights = tf.get_variable("weights", [4])
    rows = tf.nn.dropout(tf.nn.embedding_lookup(emb, numbers), rate=0.4) + tf.random_normal([4], stddev=0.1)
    guess = tf.reduce_sum(rows * weights, 1) + 1e-3 * tf.cast(noise_number, tf.float32)
    loss = tf.reduce_mean(tf.square(guess - fed))
    train = getattr(tf.train, f"{optimizer}Optimizer")(0.1).minimize(loss, global_step=step)
    drawn = tf.random_normal([], name="drawn")

config = parallax.Config(
    seed=7, accumulate_steps=kept, ckpt_config=parallax.CheckPointConfig(folder, save_ckpt_steps=3)
)
sess, num_workers, worker_id, _ = parallax.parallel_run(graph, parallax_config=config)

with sess:
    sess.run(noise.initializer)
    while int(sess.run(step)) < last and runs > 0:
        runs -= 1
        at = sess.consumed + worker_id
        value, seen, _ = sess.run([loss, numbers, train], {fed: [np.array([at, -at], np.float32)]})
        told = f"saw {' '.join(map(str, seen[0]))} loss {float(value[0]).hex()}"
        print(f"fed {at} {told}", flush=True)
        if worker_id == 0:  # a run of one worker alone
            sess.run(drawn)
    print(f"consumed {sess.consumed}", flush=True)
