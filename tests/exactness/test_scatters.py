"""Scatters into rows of each example, or along an axis that is not indexed: each worker computes its own examples'."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf
from tensorflow.python.framework import function

from ops.exactness.trial import Outcome
from tests.exactness.loss_trials import Feed, tried

pytestmark = pytest.mark.rotates(days=3)

v1 = tf.compat.v1
STEPS = 7
FEEDS: dict[str, Feed] = {
    "x": lambda rng, rows: rng.randn(rows, STEPS, 4),
    "lengths": lambda rng, rows: rng.randint(1, STEPS + 1, [rows]),
    "labels": lambda rng, rows: rng.randint(1, 5, [rows, 3]),
}


def own_places(lengths: Any) -> Any:
    return tf.stack([tf.range(tf.size(lengths)), lengths - 1], 1)


def shifted_places(lengths: Any) -> Any:
    """The same, made as TensorFlow's CTC loss makes them."""
    later = tf.stack([tf.zeros_like(lengths), lengths - 1], 1)
    return tf.expand_dims(tf.range(tf.size(lengths)), 1) * [1, 0] + later


def by_time(h: Any) -> Any:
    return tf.transpose(h, [1, 0, 2])


def into_own(scatter: Any, places: Any = own_places) -> Any:
    return lambda h, lengths: scatter(h, places(lengths), tf.reduce_sum(h, 1))


def into_some(h: Any, lengths: Any) -> Any:
    """Adds to those of the examples that are routed here, as in a mixture of experts."""
    rows = tf.where(tf.less(lengths[:, None], [3, 5]))[:, 0]  # some examples are there twice
    return tf.tensor_scatter_nd_add(h, rows[:, None], tf.square(tf.gather(h, rows)))


SCATTERS = {
    "update of own rows": into_own(tf.tensor_scatter_nd_update),
    "update of own rows, shifted": into_own(tf.tensor_scatter_nd_update, shifted_places),
    "addition to own rows": into_own(tf.tensor_scatter_nd_add),
    "subtraction from own rows": into_own(tf.tensor_scatter_nd_sub),
    "maximum of own rows": into_own(tf.tensor_scatter_nd_max),
    "addition to some examples": into_some,
    "addition to zeros": into_own(
        lambda h, places, rows: tf.tensor_scatter_nd_add(tf.zeros(tf.shape(h)), places, rows)
    ),
    "own rows of zeros": into_own(lambda h, places, rows: tf.scatter_nd(places, rows, tf.shape(h))),
    "update along time": lambda h, lengths: tf.tensor_scatter_nd_update(
        by_time(h), [[0], [2]], by_time(tf.tanh(h))[:2]
    ),
    "zeros along time": lambda h, lengths: tf.scatter_nd([[0], [2]], by_time(h)[:2], tf.shape(by_time(h))),
    "steps by several indices": lambda h, lengths: tf.gather_nd(by_time(h), [[[1], [3]], [[0], [1]]]),
}


OF_OTHERS = {
    "a row of another example": lambda h, n, lengths: tf.tensor_scatter_nd_update(h, [[2]], h[8:9] ** 2),
    "rows of the first example": lambda h, n, lengths: tf.tensor_scatter_nd_add(
        h, tf.range(n)[:, None] * [0, 0] + tf.stack([tf.zeros_like(lengths), lengths - 1], 1), h[:, 0]
    ),
    "rows in reverse, by differences": lambda h, n, lengths: tf.tensor_scatter_nd_add(
        h, tf.range(n)[:, None] * [1, 0] + tf.stack([n - 1 - 2 * tf.range(n), lengths - 1], 1), h[:, 0]
    ),
    "rows in reverse": lambda h, n, lengths: tf.tensor_scatter_nd_add(
        h, tf.stack([n - 1 - tf.range(n), lengths - 1], 1), h[:, 0]
    ),
    "rows along time": lambda h, n, lengths: tf.tensor_scatter_nd_add(
        by_time(h), tf.stack([lengths - 1, tf.range(n)], 1), h[:, 0]
    ),
}


def outcome(choose: Any, is_open: bool = True) -> Outcome:
    def build(rows: int | None) -> Any:
        x = v1.placeholder(tf.float32, [rows, STEPS, 4], name="x")
        lengths = v1.placeholder(tf.int32, [rows], name="lengths")
        h = tf.tanh(tf.tensordot(x, v1.get_variable("w", [4, 4]), 1))
        return v1.train.AdamOptimizer(0.1).minimize(tf.reduce_mean(tf.square(choose(h, lengths) - 0.3)))

    return tried(build, {name: FEEDS[name] for name in ("x", "lengths")}, is_open=is_open)


@pytest.mark.parametrize("choice", SCATTERS)
def test_nothing_is_gathered_for_rows_of_the_same_example(choice: str) -> None:
    found = outcome(SCATTERS[choice])
    assert (found.kind, found.gathers) == ("equal", ()), found


@pytest.mark.parametrize("choice", ["update of own rows", "update along time"])
def test_nothing_is_gathered_in_a_fixed_batch(choice: str) -> None:
    found = outcome(SCATTERS[choice], is_open=False)
    assert (found.kind, found.gathers) == ("equal", ()), found


@pytest.mark.parametrize("choice", OF_OTHERS)
def test_rows_of_other_examples_are_one_process_s(choice: str) -> None:
    found = outcome(lambda h, lengths: OF_OTHERS[choice](h, tf.size(lengths), lengths))
    assert found.kind == "equal", found


@pytest.mark.parametrize("is_time_major", [True, False])
def test_a_ctc_loss_gathers_nothing(is_time_major: bool) -> None:
    def build(rows: int | None) -> Any:
        x = v1.placeholder(tf.float32, [rows, STEPS, 4], name="x")
        labels = v1.placeholder(tf.int32, [rows, 3], name="labels")
        lengths = v1.placeholder(tf.int32, [rows], name="lengths")
        logits = tf.tensordot(x, v1.get_variable("w", [4, 6]), 1)
        losses = v1.nn.ctc_loss_v2(
            labels=labels,
            logits=by_time(logits) if is_time_major else logits,
            label_length=lengths % 3 + 1,
            logit_length=tf.fill([tf.shape(x)[0]], STEPS),
            logits_time_major=is_time_major,
            blank_index=0,
        )
        return v1.train.AdamOptimizer(0.1).minimize(tf.reduce_mean(losses))

    found = tried(build, FEEDS)
    assert (found.kind, found.gathers) == ("equal", ()), found


def test_functions_that_are_called_by_their_own_names_are_seen_through() -> None:
    @function.Defun(tf.float32, tf.float32)
    def predict(x: Any, w: Any) -> Any:
        return tf.reduce_sum(tf.tanh(tf.matmul(x, w)), 1)

    def build(rows: int | None) -> Any:
        x = v1.placeholder(tf.float32, [rows, STEPS, 4], name="x")
        w = v1.get_variable("w", [4, 4])
        h = predict(x[:, 0], w)
        h.set_shape([rows])
        # A Defun's own gradient is one op of the whole function: here it only weighs.
        losses = tf.square(tf.tensordot(x[:, 1], w, 1)) * tf.stop_gradient(h)[:, None]
        return v1.train.AdamOptimizer(0.1).minimize(tf.reduce_mean(losses))

    found = tried(build, {"x": FEEDS["x"]})
    assert (found.kind, found.gathers) == ("equal", ()), found
