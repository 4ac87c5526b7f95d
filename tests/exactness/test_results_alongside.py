"""What a script runs with its steps and no update needs, where the steps gather the examples of the global batch."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from parallax import Config
from parallax.analysis.graph_to_plan import analyse, plan_for, rewrites_of
from parallax.plans.plan import one_host
from tests.exactness.loss_trials import tried

pytestmark = pytest.mark.rotates(days=3)

v1 = tf.compat.v1
FEEDS = {
    "x": lambda rng, rows: rng.randn(rows, 4),
    "y": lambda rng, rows: rng.randint(0, 3, [rows]),
}


def build_sorted(rows: int | None, measure: Any) -> list[Any]:
    """A step on logits that are sorted over the global batch, and a measure of these."""
    x = v1.placeholder(tf.float32, [rows, 4], name="x")
    y = v1.placeholder(tf.int64, [rows], name="y")
    logits = tf.sort(x @ v1.get_variable("w", [4, 3]), axis=0)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
    measured = measure(x, y, logits)
    size = tf.size(measured) if measured.dtype == tf.string else tf.reduce_sum(tf.cast(measured, tf.float32))
    last = v1.get_variable("last", [], trainable=False, collections=[v1.GraphKeys.LOCAL_VARIABLES])
    return [v1.train.GradientDescentOptimizer(0.3).minimize(loss), last.assign(tf.cast(size, tf.float32))]


def _assign_best(x: Any, y: Any, logits: Any) -> Any:
    best = v1.get_variable("best", [], trainable=False)
    hits = tf.reduce_sum(tf.cast(tf.equal(tf.argmax(logits, 1), y), tf.float32))
    return best.assign(tf.maximum(best, hits / tf.cast(tf.shape(x)[0], tf.float32)))


MEASURES = {
    "a mean of hits": lambda x, y, logits: tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), y), tf.float32)),
    "hits of the best two": lambda x, y, logits: tf.nn.in_top_k(predictions=logits, targets=y, k=2),
    "a streaming accuracy": lambda x, y, logits: v1.metrics.accuracy(y, tf.argmax(logits, 1))[1],
    "an area under a curve": lambda x, y, logits: v1.metrics.auc(tf.equal(y, 1), tf.nn.softmax(logits)[:, 1])[1],
    "a confusion matrix": lambda x, y, logits: tf.math.confusion_matrix(y, tf.argmax(logits, 1), 3),
    "a histogram": lambda x, y, logits: v1.summary.histogram("e", tf.cast(y, tf.float32) - logits[:, 0]),
    "the best share of hits": _assign_best,
}


@pytest.mark.parametrize("measure", MEASURES)
def test_measures_of_gathered_examples_and_of_fed_ones_run_with_the_steps(measure: str) -> None:
    outcome = tried(lambda rows: build_sorted(rows, MEASURES[measure]), FEEDS)
    assert outcome.kind == "equal", outcome


PAIRS = {
    "hits among all": lambda x, y, n, s: tf.reduce_mean(
        tf.cast(tf.equal(tf.argmax(s, 1, output_type=tf.int32), tf.range(n)), tf.float32)
    ),
    "ranks": lambda x, y, n, s: tf.reduce_mean(
        1.0 / (1.0 + tf.reduce_sum(tf.cast(s > tf.linalg.diag_part(s)[:, None], tf.float32), 1))
    ),
    "a mean over pairs": lambda x, y, n, s: tf.reduce_sum(tf.sigmoid(s)) / tf.cast(n * n, tf.float32),
    "neighbours": lambda x, y, n, s: tf.reduce_mean(tf.square(x - tf.gather(y, tf.argmax(s, 1)))),
    "a diagonal": lambda x, y, n, s: tf.reduce_sum(s * tf.eye(n)),
    "hits of columns": lambda x, y, n, s: tf.reduce_mean(
        tf.cast(tf.equal(tf.argmax(s, 0, output_type=tf.int32), tf.range(n)), tf.float32)
    ),
    "differences to the transposed": lambda x, y, n, s: tf.reduce_mean(tf.abs(s - tf.transpose(s))),
}


@pytest.mark.parametrize("measure", PAIRS)
def test_a_measure_of_pairs_is_one_process_s_where_all_workers_add_it_up(measure: str) -> None:
    def build(rows: int | None) -> list[Any]:
        x, y = (v1.placeholder(tf.float32, [rows, 6], name=name) for name in ("x", "y"))
        w, n = v1.get_variable("w", [6, 4]), tf.shape(x)[0]
        scores = tf.matmul(x @ w, y @ w, transpose_b=True)
        each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tf.range(n), logits=scores)
        found = PAIRS[measure](x, y, n, scores)
        train = v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(each))
        return [train, v1.get_variable("last", [], trainable=False).assign(found)]

    draw = lambda rng, rows: rng.randn(rows, 6)  # noqa: E731
    outcome = tried(build, {"x": draw, "y": draw})
    assert outcome.kind == "equal", outcome


def test_a_loss_that_is_weighed_by_a_variable_is_that_of_the_global_batch_where_it_is_fetched() -> None:
    with tf.Graph().as_default() as graph:
        x, mask = (v1.placeholder(tf.float32, [None], name=name) for name in ("x", "mask"))
        w, s = v1.get_variable("w", [], initializer=v1.ones_initializer()), v1.get_variable("s", [])
        masked = tf.reduce_sum(mask * tf.square(x * w - 1.0)) / tf.maximum(tf.reduce_sum(mask), 1.0)
        loss = tf.add(tf.exp(-s) * masked, s, name="loss")
        mean = tf.reduce_mean(tf.square(x), name="mean")
        v1.train.GradientDescentOptimizer(0.1).minimize(loss)
    (layouts,) = rewrites_of(analysed := analyse(graph), plan_for(analysed, one_host(2), Config())).layouts
    completed = {one.tensor for one in layouts.changes if not one.edges}
    assert {masked.name, loss.name} <= completed
    assert mean.name not in completed


def test_summaries_of_queues_are_each_worker_s_beside_those_of_the_global_batch() -> None:
    def build(rows: int | None) -> list[Any]:
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        batch = v1.train.batch([x], rows, capacity=99, enqueue_many=True)
        loss = tf.sqrt(tf.reduce_mean(tf.square(batch @ v1.get_variable("w", [4, 3]))))
        v1.summary.scalar("loss", loss)
        train = v1.train.GradientDescentOptimizer(0.3).minimize(loss)
        (runner,) = v1.get_collection(v1.GraphKeys.QUEUE_RUNNERS)
        return [runner.enqueue_ops[0], tf.group(train, v1.summary.merge_all())]

    outcome = tried(build, {"x": FEEDS["x"]}, is_open=False)
    assert (outcome.kind, outcome.message, outcome.notes) == ("equal", "", ())


def test_gradients_that_no_update_needs_do_not_keep_a_branch_from_being_gathered() -> None:
    def build(rows: int | None) -> Any:
        x = v1.placeholder(tf.float32, [rows, 4], name="x")
        y = v1.placeholder(tf.int64, [rows], name="y")
        step = v1.train.get_or_create_global_step()
        first = x @ v1.get_variable("w", [4, 3])
        chosen = tf.where(y > 0)
        first += tf.scatter_nd(chosen, tf.gather_nd(first, chosen), tf.shape(first, tf.int64))
        h = v1.case([(step > 1, lambda: first * 2.0)], default=lambda: first * 3.0)
        h = h + h[:1] - h[-1]
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=h))
        return v1.train.GradientDescentOptimizer(0.3).minimize(loss, global_step=step)

    assert tried(build, FEEDS, is_open=False).kind == "equal"


def test_an_update_on_gathered_examples_needs_no_target_of_another_update() -> None:
    """The offset of a worker's examples is exchanged once for all updates, and is not that of the first one's check."""

    def build(rows: int | None) -> list[Any]:
        x, y, z = (v1.placeholder(tf.float32, [rows, 3], name=name) for name in "xyz")
        state = tf.math.cumulative_logsumexp(x @ v1.get_variable("w", [3, 3], trainable=False), 0)
        updates = []
        for name, target in (("a", y), ("b", z)):
            weights = v1.get_variable(name, [3, 3])
            loss = tf.reduce_mean(tf.square(state @ weights - target))
            updates.append(v1.train.GradientDescentOptimizer(0.1).minimize(loss, var_list=[weights]))
        return updates

    found = tried(build, dict.fromkeys("xyz", lambda rng, rows: rng.randn(rows, 3)))
    assert (found.kind, found.message) == ("equal", "")
