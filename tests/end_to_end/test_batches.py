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


WIDTHS = """
import tensorflow.compat.v1 as tf
import parallax

graph = tf.Graph()
with graph.as_default():
    numbers = tf.data.Dataset.range(96)
    dataset = numbers.map(lambda number: (tf.fill([1 + number % 8], number), tf.cast(number, tf.float32)))
    batches = parallax.shard.shard(dataset.repeat()).padded_batch(8, ([None], []), drop_remainder=True)
    ids, target = tf.data.make_one_shot_iterator(batches).get_next()
    rows = tf.nn.embedding_lookup(tf.get_variable("emb", [100, 4]), ids)
    mask = tf.cast(ids > 0, tf.float32)[..., None]
    {pool}
    loss = tf.reduce_mean(tf.square(tf.reduce_sum(texts, 1) - target))
    train = tf.train.GradientDescentOptimizer(0.001).minimize(loss)
sess, _, _, _ = parallax.parallel_run(graph, parallax_config=parallax.Config(seed=1))
with sess:
    for _ in range(10):
        sess.run(train)
"""


@pytest.mark.parametrize("is_masked", [False, True])
def test_texts_padded_to_unequal_widths_are_warned_of_where_the_padding_counts(run, is_masked):
    masked = "texts = tf.reduce_sum(rows * mask, 1) / tf.reduce_sum(mask, 1)"
    done = run(WIDTHS.format(pool=masked if is_masked else "texts = tf.reduce_mean(rows, 1)"), workers=2)
    assert done.status == 0, done
    found = warnings(done)
    assert len(found) == (0 if is_masked else 1), done
    assert is_masked or "unequal widths" in found[0] and "train.py:13) computes with" in found[0], done


@pytest.mark.rotates
def test_shares_of_a_dataset_are_verified_against_one_process_that_has_them_all(start, write):
    script = write("train.py", SCRIPT.replace('tf.placeholder(tf.float32, [None, 1], name="scale")', "tf.ones([1, 1])"))
    done = start("-m", "parallax.entry.cli", "verify", "--workers", 2, "--steps", 2, script, "sharded").finish()
    assert done.status == 0, done
    assert done.stdout.splitlines()[-1].startswith("2 workers and one process are equal after 2 steps: "), done
