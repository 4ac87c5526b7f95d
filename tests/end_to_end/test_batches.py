"""What a job says in its first steps of the batches and numbers of its workers."""

import pytest

pytestmark = pytest.mark.timeout(240)

SCRIPT = """
import sys
import numpy as np
import tensorflow.compat.v1 as tf
import parallax

kind = sys.argv[1]
graph = tf.Graph()
with graph.as_default():
    dataset = tf.data.Dataset.range(1000)
    if kind == "sharded":
        dataset = parallax.shard.shard(dataset)
    dataset = dataset.repeat().batch(16).map(lambda number: (number, [number, number]))
    ids, _ = tf.data.make_one_shot_iterator(dataset).get_next()
    scale = tf.placeholder(tf.float32, [None, 1], name="scale")
    emb = tf.get_variable("emb", [1000, 4])
    loss = tf.reduce_mean(tf.nn.embedding_lookup(emb, ids) * scale, name="loss")
    train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
synchronous = kind != "asynchronous"
sess, _, worker_id, _ = parallax.parallel_run(graph, sync=synchronous, parallax_config=parallax.Config(seed=1))
with sess:
    for step in range(10):
        number = np.nan if kind == "sharded" and (step, worker_id) == (3, 1) else 1.0
        sess.run([loss, train], {scale: [np.full([16, 1], number)]})
"""


def warnings(done):
    return [line for line in done.stderr.splitlines() if "PARALLAX WARNING" in line]


@pytest.mark.rotates
@pytest.mark.parametrize("kind", ["synchronous", "asynchronous"])
def test_workers_that_read_one_dataset_are_warned_with_the_remedy(run, kind):
    done = run(SCRIPT, kind, workers=2)
    assert done.status == 0, done
    (line,) = warnings(done)
    assert line.startswith("[0] ") and "Workers 0-1 train on the same batches: IteratorGetNext" in line, done
    assert "train.py:14) gave" in line and "dataset = parallax.shard.shard(dataset)" in line, done


def test_the_first_nan_is_told_once_with_its_step_and_worker_and_shares_are_not_warned_of(run):
    done = run(SCRIPT, "sharded", workers=3)
    assert done.status == 0, done
    (line,) = warnings(done)
    assert line.startswith("[0] PARALLAX WARNING: loss:0 became NaN in step 4 on worker 1."), done
