"""What `parallax check` finds in a graph that is allowed and may not be meant."""

import pytest
import tensorflow as tf

from parallax.analysis.reading import record
from parallax.analysis.stages import analyse
from parallax.runtime.check.suspicious import suspicions

v1 = tf.compat.v1


@pytest.fixture(autouse=True, scope="module")
def recorded():
    record.install()


def found(build, batch=None):
    graph = tf.Graph()
    with graph.as_default():
        ids = v1.placeholder(tf.int32, [batch], name="ids")
        table = v1.get_variable("table", [11, 4])
        build(tf.gather(table, ids), ids)
    analysed = analyse(graph, layouts=False)
    return [one.text for one in suspicions(analysed.captured, analysed.spec, analysed.sources)]


def train(loss):
    return v1.train.GradientDescentOptimizer(0.1).minimize(loss)


@pytest.mark.parametrize(
    "loss",
    [
        lambda rows, ids: tf.reduce_mean(tf.reduce_sum(rows, 1)) + tf.nn.l2_loss(v1.get_variable("w", [3])),
        lambda rows, ids: tf.reduce_sum(rows) / tf.cast(tf.shape(rows)[0], tf.float32),
        lambda rows, ids: v1.losses.mean_squared_error(tf.zeros_like(rows), rows) * 0.5,
        lambda rows, ids: tf.reduce_sum(tf.reduce_mean(rows, 0)),
    ],
    ids=["mean", "divided by the batch", "tf.losses", "mean along the batch first"],
)
def test_a_mean_over_the_batch_is_not_suspicious(loss):
    assert found(lambda rows, ids: train(loss(rows, ids))) == []


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (lambda rows, ids: tf.reduce_sum(rows), "is a sum over the batch (Sum) and not a mean"),
        (lambda rows, ids: 0.1 + 2.0 * tf.reduce_sum(rows), "is a sum over the batch (Sum) and not a mean"),
        (
            lambda rows, ids: tf.reduce_sum(rows) / tf.reduce_sum(tf.cast(ids > 3, tf.float32), name="weights"),
            "is a sum over the batch (Sum), divided by weights, which the batch determines",
        ),
        (lambda rows, ids: tf.reduce_mean(rows) + 0.1 * tf.nn.l2_loss(rows), "is a sum over the batch (L2Loss)"),
        (lambda rows, ids: tf.norm(rows), "is a sum over the batch (norm/Sum)"),
    ],
    ids=["sum", "scaled sum", "mean over a mask", "squares of looked-up rows", "norm"],
)
def test_a_sum_over_the_batch_is_told(loss, said):
    (text,) = found(lambda rows, ids: train(loss(rows, ids)))
    assert said in text


SIX = 6
SAID_OF_FIXED = "Placeholders have a fixed batch"


@pytest.mark.parametrize(
    ("loss", "sums"),
    [
        (lambda rows, ids: tf.reduce_sum(rows), True),
        (lambda rows, ids: 0.01 * tf.reduce_sum(tf.reduce_sum(tf.square(rows), 1)), True),
        (lambda rows, ids: tf.reduce_mean(rows) + 0.1 * tf.nn.l2_loss(rows), True),
        (lambda rows, ids: tf.reduce_sum(rows @ tf.ones([4, SIX])), True),
        (lambda rows, ids: tf.reduce_mean(tf.reduce_sum(rows, 1)), False),
        (lambda rows, ids: tf.reduce_sum(rows) / SIX, False),
        (lambda rows, ids: tf.reduce_sum(tf.square(rows)) * (1.0 / SIX), False),
        (lambda rows, ids: 0.5 * (tf.reduce_sum(tf.square(rows)) * (1.0 / (4 * SIX))), False),
        (lambda rows, ids: tf.reduce_sum(tf.reduce_mean(rows @ tf.ones([4, SIX]), 0)), False),
        (lambda rows, ids: tf.reduce_mean(rows) + tf.nn.l2_loss(v1.get_variable("w", [SIX])), False),
    ],
)
def test_a_sum_over_a_batch_of_fixed_length_is_told_and_a_mean_is_not(loss, sums):
    texts = found(lambda rows, ids: train(loss(rows, ids)), batch=SIX)
    others = [text for text in texts if SAID_OF_FIXED not in text]
    assert len(others) == int(sums) and all("is a sum over the batch" in text for text in others), texts


def test_what_is_good_to_know_is_told():
    def build(rows, ids):
        v1.get_variable("unused", [2])
        seen = v1.get_variable("seen", [], tf.int32, trainable=False)
        loss = tf.reduce_mean(tf.nn.dropout(rows, rate=0.5))
        v1.assign_add(seen, tf.reduce_sum(ids))
        train(loss)

    texts = "\n".join(found(build, batch=6))
    assert "without a gradient that updates them: unused." in texts
    assert "Every worker keeps its own value of seen (class local)." in texts
    assert "Placeholders have a fixed batch: ids." in texts
    assert "Random ops are part of a step: dropout/" in texts
