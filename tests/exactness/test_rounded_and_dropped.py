"""Ops that round, number or drop by what they see of a batch: with a worker's share they would see something else."""

from __future__ import annotations

from collections.abc import Callable
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
    "x": lambda rng, rows: rng.randn(rows, 6),
    "y": lambda rng, rows: rng.randn(rows, 1),
    "n": lambda rng, rows: rng.randint(0, 9, [rows, 3]),
}


def trained(loss_of: Callable[[Any, Any, Any, Any], Any]) -> Callable[[int | None], Any]:
    """A graph that trains two layers; the loss takes their outputs `[rows, 1]`, hidden units `[rows, 4]`, y and n."""

    def build(rows: int | None) -> Any:
        x, y = v1.placeholder(tf.float32, [rows, 6], name="x"), v1.placeholder(tf.float32, [rows, 1], name="y")
        n = v1.placeholder(tf.int32, [rows, 3], name="n")
        hidden = tf.tanh(x @ v1.get_variable("w", [6, 4]))
        loss = loss_of(hidden @ v1.get_variable("o", [4, 1]), hidden, y, n)
        return v1.train.GradientDescentOptimizer(0.1).minimize(loss)

    return build


def _per_row(p: Any, y: Any) -> Any:
    return tf.square(tf.squeeze(p) - tf.squeeze(y))


SQUEEZED = {
    "a mean": lambda p, h, y, n: tf.reduce_mean(_per_row(p, y)),
    "a sum along what is left": lambda p, h, y, n: tf.reduce_mean(tf.reduce_sum(tf.square(tf.squeeze(h[:, None])), 1)),
    "rows of a shape": lambda p, h, y, n: tf.reduce_mean(tf.reshape(tf.squeeze(p), [-1, 1]) * y),
    "in a branch": lambda p, h, y, n: tf.reduce_mean(
        tf.cond(tf.reduce_sum(y) > 0.0, lambda: _per_row(p, y), lambda: 2.0 * _per_row(p, y))
    ),
    "in a loop": lambda p, h, y, n: tf.reduce_mean(
        tf.while_loop(
            lambda i, s: i < 3, lambda i, s: (i + 1, tf.ensure_shape(tf.squeeze(p * 0.5), [None]) + s), [0, p[:, 0]]
        )[1]
    ),
}


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("loss", SQUEEZED)
def test_a_share_of_one_example_keeps_its_axis(loss: str, rows: int) -> None:
    outcome = tried(trained(SQUEEZED[loss]), FEEDS, rows=rows)
    assert outcome.kind == "equal", outcome


ROUNDED = {
    "a mean of integers": lambda n: tf.reduce_mean(n),
    "a mean of the batch's integers": lambda n: tf.reduce_sum(tf.reduce_mean(n, 0)),
    "a mean of sums": lambda n: tf.reduce_mean(tf.reduce_sum(n, 0)),
    "a mean of means": lambda n: tf.reduce_mean(tf.reduce_mean(n, 1)),
    "a mean of each row": lambda n: tf.reduce_sum(tf.reduce_mean(n, 1)),
    "an old division": lambda n: tf.raw_ops.Div(x=tf.reduce_sum(n), y=5),
    "a division": lambda n: tf.reduce_sum(n) // 5,
    "a truncated mean": lambda n: tf.cast(tf.reduce_mean(tf.cast(n, tf.float32)), tf.int32),
}


@pytest.mark.parametrize("number", ROUNDED)
def test_integers_are_rounded_once_for_the_global_batch(number: str) -> None:
    def loss_of(p: Any, h: Any, y: Any, n: Any) -> Any:
        return tf.reduce_mean(tf.square(p - y)) * tf.cast(1 + ROUNDED[number](n), tf.float32) * 0.05

    outcome = tried(trained(loss_of), FEEDS)
    assert outcome.kind == "equal", outcome


def _pooled(h: Any, is_of_batch: bool) -> tuple[Any, Any]:
    images = tf.reshape(h, [-1, 2, 2, 1])
    return tf.nn.max_pool_with_argmax(images, [1, 2, 1, 1], [1, 2, 1, 1], "VALID", include_batch_in_index=is_of_batch)


@pytest.mark.parametrize("is_of_batch", [False, True])
def test_values_are_numbered_within_the_global_batch(is_of_batch: bool) -> None:
    def loss_of(p: Any, h: Any, y: Any, n: Any) -> Any:
        values, numbers = _pooled(h, is_of_batch)
        return tf.reduce_mean(tf.square(p - y)) + tf.reduce_mean(values) * 0.01 * tf.reduce_sum(
            tf.cast(numbers, tf.float32)
        )

    outcome = tried(trained(loss_of), FEEDS)
    assert outcome.kind == "equal", outcome
    assert any("MaxPoolWithArgmax" in gather for gather in outcome.gathers) == is_of_batch, outcome.gathers


@pytest.mark.parametrize(
    ("name", "loss_of"),
    {
        "a running sum": lambda each, n: tf.cumsum(each)[-1] / n,
        "a trimmed sum": lambda each, n: tf.reduce_sum(tf.sort(each)[:-1]) / n,
    }.items(),
)
def test_a_fetched_sum_of_gathered_examples_is_divided_by_the_global_length(name: str, loss_of: Any) -> None:
    with tf.Graph().as_default() as graph:
        x, y = v1.placeholder(tf.float32, [None, 6], name="x"), v1.placeholder(tf.float32, [None], name="y")
        each = tf.square(tf.linalg.matvec(x, v1.get_variable("w", [6])) - y)
        loss = tf.identity(loss_of(each, tf.cast(tf.shape(x)[0], tf.float32)), name="loss")
        v1.train.GradientDescentOptimizer(0.05).minimize(loss)
    analysed = analyse(graph)
    (layouts,) = rewrites_of(analysed, plan_for(analysed, one_host(2), Config())).layouts
    assert loss.name in {change.tensor for change in layouts.changes if change.is_whole}


def test_a_fraction_of_a_count_is_that_of_the_whole_count() -> None:
    """0.7 of 40 is 28, but 0.7 of each worker's examples add up to less in the last bit."""

    def keep_hardest(p: Any, h: Any, y: Any, n: Any) -> Any:
        count = tf.reduce_sum(tf.cast(n[:, 0] >= 0, tf.float32))
        return tf.reduce_mean(tf.nn.top_k(tf.square(p - y)[:, 0], tf.cast(count * 0.7, tf.int32))[0])

    outcome = tried(trained(keep_hardest), FEEDS, rows=13)
    assert (outcome.kind, outcome.notes) == ("equal", ()), outcome
