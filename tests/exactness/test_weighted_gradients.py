"""Gradients with weights (`grad_ys`) or stopped tensors, in graphs for an open and for a fixed batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.exactness.loss_trials import tried

v1 = tf.compat.v1
F = tf.float64
FEEDS = {
    "x": lambda rng, rows: rng.randn(rows, 6),
    "y": lambda rng, rows: rng.randn(rows, 3),
    "ids": lambda rng, rows: rng.randint(0, 11, [rows]),
}


def count(x: Any) -> Any:
    return tf.cast(tf.shape(x)[0], F)


def policy(x: Any, y: Any, ids: Any, w: Any) -> Any:
    """Deterministic policy gradients: weights are the gradients of a critic, and updates divide by the batch size."""
    action = tf.tanh(x @ w)
    score = tf.concat([x, action], 1) @ v1.get_variable("critic", [9, 1], F) + tf.reduce_sum(action * y, 1)[:, None]
    weights = -tf.gradients(score, action)[0]
    return [tf.divide(gradient, count(x)) for gradient in tf.gradients(action, [w], weights)]


def fed(x: Any, y: Any, ids: Any, w: Any) -> Any:
    return tf.gradients(tf.tanh(x @ w), [w], y)


def constant(x: Any, y: Any, ids: Any, w: Any) -> Any:
    out = tf.tanh(x @ w)
    if x.shape[0] is None:
        return tf.gradients(out, [w], tf.ones_like(out))
    return tf.gradients(out, [w], tf.constant(np.tile([[0.5, 1.0, -0.2]], [x.shape[0], 1])))


def means(x: Any, y: Any, ids: Any, w: Any) -> Any:
    return tf.gradients(tf.tanh(x @ w), [w], y / count(x))


def itself(x: Any, y: Any, ids: Any, w: Any) -> Any:
    out = tf.tanh(x @ w)
    return tf.gradients(out, [w], out)


def several(x: Any, y: Any, ids: Any, w: Any) -> Any:
    out = tf.tanh(x @ w)
    return tf.gradients([out, tf.reduce_mean(out)], [w], [y, None])


def of_a_tape(x: Any, y: Any, ids: Any, w: Any) -> Any:
    with tf.GradientTape() as tape:
        out = tf.tanh(x @ w)
    return tape.gradient(out, [w], output_gradients=y)


def forward(x: Any, y: Any, ids: Any, w: Any) -> Any:
    """A Jacobian-vector product: the gradient is differentiated with respect to its weights."""
    out = tf.tanh(x @ w)
    weights = tf.ones_like(out)
    (product,) = tf.gradients(tf.gradients(out, w, weights)[0], weights, 0.5 * tf.stop_gradient(w))
    return tf.gradients(tf.reduce_mean(tf.square(out - y)) + 0.1 * tf.reduce_mean(tf.square(product)), [w])


def curvature(x: Any, y: Any, ids: Any, w: Any) -> Any:
    (gradient,) = tf.gradients(tf.reduce_mean(tf.exp(0.3 * x @ w) * tf.sigmoid(y)), [w])
    return tf.gradients(gradient, [w], tf.stop_gradient(gradient))


def stopped(x: Any, y: Any, ids: Any, w: Any) -> Any:
    hidden = x @ w
    loss = tf.reduce_mean(tf.square(tf.tanh(hidden) * hidden + w[0] - y))
    return tf.gradients(loss, [w], stop_gradients=[hidden])


DENSE = [policy, fed, constant, means, itself, several, of_a_tape, forward, curvature, stopped]


@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("compute", DENSE)
def test_weighted_gradients_are_those_of_the_global_batch(compute: Any, is_open: bool) -> None:
    def build(rows: int | None) -> Any:
        v1.get_variable_scope().set_use_resource(True)
        x, y = v1.placeholder(F, [rows, 6], name="x"), v1.placeholder(F, [rows, 3], name="y")
        ids = v1.placeholder(tf.int32, [rows], name="ids")
        w = v1.get_variable("w", [6, 3], F)
        return v1.train.GradientDescentOptimizer(0.02).apply_gradients(zip(compute(x, y, ids, w), [w], strict=True))

    outcome = tried(build, FEEDS, is_open=is_open, dtype="float64", rows=14)
    assert (outcome.kind, outcome.notes, outcome.gathers) == ("equal", (), ()), outcome


@pytest.mark.parametrize("route", ["alltoall", "allreduce"])
def test_weighted_gradients_of_a_table_are_those_of_the_global_batch(route: str) -> None:
    def build(rows: int | None) -> Any:
        y, ids = v1.placeholder(F, [rows, 3], name="y"), v1.placeholder(tf.int32, [rows], name="ids")
        v1.placeholder(F, [rows, 6], name="x")
        table = v1.get_variable("table", [11, 3], F)
        gradients = tf.gradients(tf.nn.embedding_lookup(table, ids) * y, [table], tf.sigmoid(y))
        return v1.train.AdagradOptimizer(0.1).apply_gradients(zip(gradients, [table], strict=True))

    outcome = tried(build, FEEDS, route=route, is_open=False, dtype="float64", rows=14)
    assert (outcome.kind, outcome.notes, outcome.gathers) == ("equal", (), ()), outcome
