"""Conditionals that write variables, and normalize, in graphs for a fixed batch: N workers are one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from tests.exactness.loss_trials import tried

v1 = tf.compat.v1
FEEDS = {
    "x": lambda rng, rows: rng.randn(rows, 4, 4, 2),
    "ids": lambda rng, rows: rng.randint(0, 6, [rows]),
    "training": lambda rng, rows: rng.rand() < 0.7,
}


def by_hand(x: Any, ids: Any, training: Any) -> Any:
    """A mean that one branch subtracts and stores, a scale that it alone reads, and a table beside it."""
    stored = v1.get_variable("stored", [2], tf.float64, trainable=False)
    scale, table = v1.get_variable("scale", [2], tf.float64), v1.get_variable("table", [6, 2], tf.float64)

    def normalize() -> Any:
        mean = tf.reduce_mean(x, [0, 1, 2])
        with tf.control_dependencies([stored.assign(0.9 * stored + 0.1 * mean)]):
            return (x - mean) * scale

    return tf.cond(training, normalize, lambda: x - stored) + 0.1 * tf.gather(table, ids)[:, None, None]


def fused(x: Any, ids: Any, training: Any) -> Any:
    """A layer of TensorFlow 1, whose conditional writes nothing, between variables in 32 bits."""
    scale, offset = v1.get_variable("scale", [2]), v1.get_variable("offset", [2])
    stored = [v1.get_variable(name, [2], trainable=False) for name in ("mean", "variance")]

    def normalize(*statistics: Any) -> Any:
        pieces = tf.cast(x, tf.float32), scale, offset, *statistics
        return v1.nn.fused_batch_norm(*pieces, is_training=not statistics)

    normalized, *found = tf.cond(training, normalize, lambda: normalize(stored[0], tf.square(stored[1]) + 1.0))
    for variable, value in zip(stored, found, strict=True):
        v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, variable.assign(0.9 * variable + 0.1 * value))
    return tf.cast(normalized, tf.float64)


@pytest.mark.parametrize("control_flow_v2", [True, False])
@pytest.mark.parametrize("normalize", [by_hand, fused])
def test_normalizations_in_branches_are_of_the_global_batch(
    normalize: Callable[..., Any], control_flow_v2: bool
) -> None:
    def build(rows: int | None) -> Any:
        v1.get_variable_scope().set_use_resource(True)
        x, ids = v1.placeholder(tf.float64, [rows, 4, 4, 2], name="x"), v1.placeholder(tf.int64, [rows], name="ids")
        w = v1.get_variable("w", [2, 2], tf.float64)
        out = tf.tanh(normalize(x @ w, ids, v1.placeholder(tf.bool, [], name="training")))
        loss = tf.reduce_mean(tf.square(tf.reduce_sum(out, [1, 2, 3]) - 1.0))
        train = v1.train.MomentumOptimizer(0.01, 0.9).minimize(loss)
        return tf.group(train, v1.get_collection(v1.GraphKeys.UPDATE_OPS))

    outcome = tried(build, FEEDS, is_open=False, dtype="float64", control_flow_v2=control_flow_v2, rows=6)
    assert (outcome.kind, outcome.notes) == ("equal", ()), outcome
    assert all("uses statistics" in one for one in outcome.gathers) or normalize is by_hand, outcome.gathers


def test_rows_that_a_branch_looks_up_leave_the_batch_fixed() -> None:
    """Of the branch that is not taken, momentum is applied to the rows of zeros that TensorFlow makes."""

    def build(rows: int | None) -> Any:
        v1.get_variable_scope().set_use_resource(True)
        ids, table = v1.placeholder(tf.int64, [rows], name="ids"), v1.get_variable("table", [6, 2], tf.float64)
        count, training = (
            v1.get_variable("count", [], tf.float64, trainable=False),
            v1.placeholder(tf.bool, [], "training"),
        )

        def look_up() -> Any:
            with tf.control_dependencies([count.assign_add(1.0)]):
                return tf.gather(table, ids)

        others = tf.gather(table, 5 - ids)
        out = others + tf.cond(training, look_up, lambda: 0.5 * others)
        return v1.train.MomentumOptimizer(0.01, 0.9).minimize(tf.reduce_mean(tf.square(out - 1.0)))

    outcome = tried(build, {name: FEEDS[name] for name in ("ids", "training")}, is_open=False, dtype="float64", rows=7)
    assert outcome.kind in ("told", "equal") and "looks up rows of 'table'" in "".join(outcome.notes), outcome


IN_BRANCHES = {
    "zeros": lambda x, w, n: x @ w + tf.zeros([n, 4]),
    "zeros alone": lambda x, w, n: tf.ones([n, 4]),
    "a tile": lambda x, w, n: x * tf.tile(w[:1], [n, 1]),
    "a reshape": lambda x, w, n: tf.reshape(tf.reshape(x @ w, [n, 2, 2]), [n, 4]),
    "numbers": lambda x, w, n: tf.gather(x, tf.range(n)) @ w,
    "a sum of examples": lambda x, w, n: (
        x @ w + tf.reduce_sum(x) / (n if isinstance(n, int) else tf.cast(n, tf.float32))
    ),
    "a loop": lambda x, w, n: tf.while_loop(
        lambda t, _: t < 2, lambda t, s: (t + 1, tf.tanh(s @ w) + tf.ones([n, 4])), [0, x]
    )[1],
}


@pytest.mark.rotates
@pytest.mark.parametrize("is_taken", [True, False])
@pytest.mark.parametrize("what", IN_BRANCHES)
def test_a_branch_of_the_old_style_makes_tensors_of_the_batch(what: str, is_taken: bool) -> None:
    """As dropout does in a branch that training takes."""

    def build(rows: int | None) -> Any:
        x, y = v1.placeholder(tf.float32, [rows, 4], name="x"), v1.placeholder(tf.float32, [rows], name="y")
        w, n = v1.get_variable("w", [4, 4]), rows or tf.shape(x)[0]
        is_training = v1.placeholder_with_default(is_taken, [], name="is_training")
        h = tf.cond(is_training, lambda: IN_BRANCHES[what](x, w, n), lambda: x @ w * 0.5)
        h = tf.tanh(h) + tf.tanh(x @ w)
        mean = tf.reduce_mean(tf.square(tf.reduce_sum(h, 1) - y))
        return v1.train.GradientDescentOptimizer(0.1).minimize(mean + tf.sqrt(mean + 1.0))

    feeds = {"x": lambda rng, rows: rng.randn(rows, 4), "y": lambda rng, rows: rng.randn(rows)}
    for is_open in (False, True):
        found = tried(build, feeds, is_open=is_open, control_flow_v2=False, rows=6)
        assert (found.kind, found.message, found.notes) == ("equal", "", ())
