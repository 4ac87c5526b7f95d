"""State that training reads and a batch writes: by layouts it is written from the global batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf
from tf_keras.src.legacy_tf_layers import normalization

from ops.exactness.trial import Outcome
from tests.exactness.loss_trials import tried

pytestmark = pytest.mark.rotates(days=3)

v1 = tf.compat.v1
F = tf.float64
CLASSES, WIDTH = 7, 4
Write = Callable[[Any, Any, Any], Any]
"""(centers `[CLASSES, WIDTH]` or `[WIDTH]`, labels `[batch]`, outputs `[batch, WIDTH]`) -> what writes the centers."""


def scatter_each(centers: Any, labels: Any, h: Any) -> Any:
    def body(number: Any) -> Any:
        centers.scatter_sub(tf.IndexedSlices(0.1 * h[number : number + 1], labels[number : number + 1]))
        return number + 1

    return tf.while_loop(lambda number: number < tf.shape(h)[0], body, [tf.constant(0)])


CENTERS: dict[str, Write] = {
    "rows by number": lambda c, labels, h: v1.scatter_sub(c, labels, 0.1 * (tf.gather(c, labels) - h)),
    "rows of more numbers": lambda c, labels, h: tf.raw_ops.ResourceScatterNdAdd(
        ref=c.handle, indices=labels[:, None], updates=h
    ),
    "a slice": lambda c, labels, h: c[:1].assign(h[:1]),
    "sums by label": lambda c, labels, h: c.assign(0.9 * c + tf.math.unsorted_segment_sum(h, labels, CLASSES)),
    "a product along the batch": lambda c, labels, h: c.assign(
        0.9 * c + tf.matmul(tf.one_hot(labels, CLASSES, dtype=F), h, transpose_a=True)
    ),
    "rows in a loop": scatter_each,
    "a condition of one example": lambda c, labels, h: tf.cond(
        labels[0] > 2, lambda: c.assign_add(tf.ones([CLASSES, WIDTH], F)), lambda: tf.identity(c)
    ),
}
CENTER: dict[str, Write] = {
    "one example": lambda c, labels, h: c.assign(h[0]),
    "a moving mean": lambda c, labels, h: c.assign(0.9 * c + 0.1 * tf.reduce_mean(h, 0)),
    "a moving mean of squares": lambda c, labels, h: c.assign_sub(0.1 * (c - tf.reduce_mean(h * h, [0]) / 2.0)),
    "the square of a mean": lambda c, labels, h: c.assign_sub(0.1 * (c - tf.square(tf.reduce_mean(h, 0)))),
    "a maximum": lambda c, labels, h: c.assign(tf.reduce_max(h, 0)),
    "a sum": lambda c, labels, h: c.assign_add(tf.reduce_sum(h, 0)),
    "the second of a rank": lambda c, labels, h: c.assign(tf.sort(h, 0)[1]),
    "what is made of weights": lambda c, labels, h: c.assign(0.9 * c + 0.1),
}
BESIDE: dict[str, Write] = {
    "a loss": lambda c, labels, h: v1.assign(v1.get_variable("seen", [], F, trainable=False), tf.reduce_sum(h)),
    "a count": lambda c, labels, h: v1.assign_add(
        v1.get_variable("seen", [], tf.int64, trainable=False), tf.reduce_sum(labels)
    ),
}


def outcome_of(case: str) -> Outcome:
    write = {**CENTERS, **CENTER, **BESIDE}[case]

    def build(rows: int | None) -> list[Any]:
        x, labels = v1.placeholder(F, [rows, 3], name="x"), v1.placeholder(tf.int64, [rows], name="labels")
        shape = [CLASSES, WIDTH] if case in CENTERS else [WIDTH]
        centers = v1.get_variable("centers", shape, F, trainable=False, use_resource=True)
        h = tf.matmul(x, v1.get_variable("w", [3, WIDTH], F, use_resource=True))
        read = tf.gather(centers.read_value(), labels) if case in CENTERS else centers.read_value()
        loss = tf.reduce_mean(tf.square(h - tf.stop_gradient(read) - 1.0))
        train = v1.train.GradientDescentOptimizer(0.1).minimize(loss)
        with v1.control_dependencies([train]):
            return [tf.group(write(centers, labels, tf.identity(h)))]

    feeds = {"x": lambda rng, rows: rng.randn(rows, 3), "labels": lambda rng, rows: rng.randint(0, CLASSES, [rows])}
    return tried(build, feeds, dtype="float64")


@pytest.mark.parametrize("case", sorted({*CENTERS, *CENTER, *BESIDE}))
def test_state_is_written_from_the_global_batch(case: str) -> None:
    found = outcome_of(case)
    assert (found.kind, found.message) == ("equal", "")


@pytest.mark.parametrize("control_flow_v2", [True, False])
@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("has_default", [True, False])
def test_normalizations_that_a_fed_scalar_chooses_are_of_the_global_batch(
    has_default: bool, is_open: bool, control_flow_v2: bool
) -> None:
    def build(rows: int | None) -> Any:
        x = v1.placeholder(tf.float32, [rows, 6], name="x")
        y = v1.placeholder(tf.float32, [rows, 1], name="y")
        training = v1.placeholder(tf.bool, [], name="training")
        if has_default:
            training = v1.placeholder_with_default(training, [])
        h = x
        for name in ("first", "second"):
            h = h @ v1.get_variable(name, [h.shape[-1], 4])
            h = normalization.batch_normalization(h, training=training, name=f"{name}_normalized")
        loss = tf.reduce_mean(tf.square(tf.nn.relu(h) @ v1.get_variable("last", [4, 1]) - y))
        with tf.control_dependencies(v1.get_collection(v1.GraphKeys.UPDATE_OPS)):
            return v1.train.MomentumOptimizer(0.05, 0.9).minimize(loss)

    feeds = {
        "x": lambda rng, rows: rng.randn(rows, 6),
        "y": lambda rng, rows: rng.randn(rows, 1),
        "training": lambda rng, rows: True,
    }
    outcome = tried(build, feeds, is_open=is_open, control_flow_v2=control_flow_v2)
    assert outcome.kind == "equal", outcome


@pytest.mark.parametrize("is_open", [True, False])
def test_a_layer_is_initialized_by_the_first_batch(is_open: bool) -> None:
    """Glow's normalization: a flag of all workers chooses a branch that writes a variable, and is differentiated."""

    def build(rows: int | None) -> Any:
        x = v1.placeholder(F, [rows, WIDTH], name="x")
        w, offset = v1.get_variable("w", [WIDTH, 3], F), v1.get_variable("offset", [WIDTH], F, v1.zeros_initializer())
        flag = v1.get_variable("flag", [], tf.int32, v1.zeros_initializer(), trainable=False)

        def initialize() -> Any:
            with tf.control_dependencies([offset.assign(-tf.reduce_mean(x, 0))]):
                return x + offset.read_value()

        h = tf.cond(flag.read_value() > 0, lambda: x + offset, initialize)
        with tf.control_dependencies([h]):
            done = flag.assign(1)
        loss = tf.reduce_mean(tf.square(h @ w - 1.0))
        return tf.group(v1.train.GradientDescentOptimizer(0.1).minimize(loss), done)

    feeds = {"x": lambda rng, rows: rng.randn(rows, WIDTH)}
    found = tried(build, feeds, dtype="float64", is_open=is_open, control_flow_v2=True)
    assert (found.kind, found.message, found.notes) == ("equal", "", ())
