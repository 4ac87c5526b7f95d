"""A loop as drivers of 2019 have it, with shares of datasets, a queue, summaries, traces and sums of sparse gradients.

Argument: a folder to write to.
"""

import sys
from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf

import parallax
from parallax import shard

tf.disable_v2_behavior()
folder = Path(sys.argv[1])
ROUTES = {"to_owners": "alltoall", "to_all": "allgather", "summed": "allreduce"}

single_gpu_graph = tf.Graph()
with single_gpu_graph.as_default():
    tf.set_random_seed(5)
    global_step = tf.train.get_or_create_global_step()
    num_shards, shard_id = shard.create_num_shards_and_shard_id()
    numbers = tf.data.make_one_shot_iterator(shard.shard(tf.data.Dataset.range(9).batch(2))).get_next()
    lines = tf.data.TextLineDataset([str(folder / "first.txt"), str(folder / "second.txt")]).batch(4)
    iterator = tf.data.make_initializable_iterator(shard.shard(lines))
    next_lines = iterator.get_next()
    queued = tf.train.batch([tf.train.input_producer([7], shuffle=False).dequeue()], 2)

    ids = tf.placeholder(tf.int32, [2], name="ids")
    tables = {n: tf.get_variable(n, [6, 3], initializer=tf.ones_initializer()) for n in ROUTES}
    dense = tf.get_variable("dense", [3], initializer=tf.ones_initializer())
    rows = sum(tf.nn.embedding_lookup(table, ids) for table in tables.values())
    loss = tf.reduce_mean(tf.reduce_sum(rows, 1)) + tf.reduce_sum(dense) * tf.reduce_mean(tf.cast(ids, tf.float32))
    train_op = tf.train.GradientDescentOptimizer(1.0).minimize(loss, global_step=global_step)
    tf.summary.scalar("loss", loss)
    tf.summary.histogram("rows", rows)
    summary_op = tf.summary.merge_all()

parallax_config = parallax.Config(average_sparse=False, routes=ROUTES, seed=3)
parallax_config.sess_config = tf.ConfigProto(allow_soft_placement=True)
parallax_config.redirect_path = folder / "output"
parallax_config.export_graph_path = str(folder / "graphs")
parallax_config.profile_config = parallax.ProfileConfig(str(folder / "profile"), [1, 3, 99], profile_worker=1)
sess, num_workers, worker_id, num_replicas_per_worker = parallax.parallel_run(
    single_gpu_graph, None, sync=True, parallax_config=parallax_config
)


def until_the_end(fetch):
    found = []
    try:
        while True:
            found.extend(sess.run(fetch)[0].tolist())
    except tf.errors.OutOfRangeError:
        return found


# The session runs the queue's runner already; a second one would put each element out of its order.
coordinator = tf.train.Coordinator()
assert tf.train.start_queue_runners(sess=sess, coord=coordinator) == []
assert sess.run([num_shards, shard_id]) == [[num_workers], [worker_id]]
print("numbers", until_the_end(numbers))
for _ in range(2):
    assert sess.run(iterator.initializer) == [None]
    print("lines", [int(line) for line in until_the_end(next_lines)])
assert sess.run(queued)[0].tolist() == [7, 7]

before = sess.run([*tables.values(), dense])
mine = [2 * worker_id, 5]  # row 5 is everybody's
feed_dict = {ids: [mine] * num_replicas_per_worker}
run_metadata = tf.RunMetadata()
options = tf.RunOptions(trace_level=tf.RunOptions.SOFTWARE_TRACE)
sess.run(loss, feed_dict, options=options, run_metadata=run_metadata)
assert run_metadata.step_stats.dev_stats
sess.run([loss, train_op], feed_dict=feed_dict)
*after, dense_after = sess.run([*tables.values(), dense])
for [old], [new] in zip(before, after, strict=False):
    touched = np.zeros([6, 3])
    for worker in range(num_workers):
        touched[[2 * worker, 5]] += 0.5  # the mean over a batch of two, summed over the workers
    np.testing.assert_allclose(old - new, touched, rtol=1e-6)
mean_id = np.mean([[2 * worker, 5] for worker in range(num_workers)])
np.testing.assert_allclose(before[-1][0] - dense_after[0], mean_id, rtol=1e-6)  # dense gradients stay means

summary_writer = tf.summary.FileWriter(str(folder / "summaries"), single_gpu_graph) if worker_id == 0 else None
for _ in range(4):
    summary, step, _ = sess.run([summary_op, global_step, train_op], feed_dict=feed_dict)
    if worker_id == 0:
        summary_writer.add_summary(summary[0], step[0])
if worker_id == 0:
    summary_writer.close()
print("done", int(sess.run(global_step)[0]), file=sys.stderr)
