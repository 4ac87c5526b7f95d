"""Small graphs whose gradients are taken inside functions, of other gradients, or of the network's inputs.

As in models.py, a model is built for a batch of `rows` rows in the default graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tests.equality.models import ROWS, WIDTH, dense, ids, squared, table

v1 = tf.compat.v1


def _features(rows: int) -> tuple[Any, Any]:
    """(features `[rows, ROWS]`, targets `[rows, 1]`)."""
    return tf.one_hot(ids(rows), ROWS), v1.placeholder(tf.float32, [rows, 1], name="y")


def _weights() -> tuple[Any, Any]:
    return v1.get_variable("w1", [ROWS, WIDTH]), v1.get_variable("w2", [WIDTH, 1])


def _output(x: Any, w1: Any, w2: Any) -> Any:
    return tf.tanh(x @ w1) @ w2


def _error(output: Any, y: Any) -> Any:
    return tf.reduce_mean(tf.square(output - y))


def repeated_inputs(rows: int) -> None:
    """A function takes one tensor twice, in a product and in a concat."""

    @tf.function
    def both(a: Any) -> Any:
        return tf.concat([a * a, a], 1) + tf.concat([a, a], 1)

    loss = squared(dense(both(tf.nn.embedding_lookup(table(), ids(rows)))), rows)
    v1.train.AdagradOptimizer(0.5).minimize(loss)


def _gradients_in_a_function(rows: int, nested: bool) -> None:
    """A function gives the gradients of a dense weight and of rows; it is called twice, and clipping is outside."""
    emb, w = table(), v1.get_variable("w", [WIDTH, 1])
    x, y = ids(rows), v1.placeholder(tf.float32, [rows, 1], name="y")

    @tf.function
    def gradients(at: Any) -> Any:
        return tf.gradients(_error(tf.nn.embedding_lookup(emb, at) @ w, y), [emb, w])

    @tf.function
    def by_another(at: Any) -> Any:
        rows_of, of_w = gradients(at)
        with tf.GradientTape() as tape:
            loss = 0.1 * tf.nn.l2_loss(w) + tf.reduce_mean(tf.nn.embedding_lookup(emb, at) @ w)
        return rows_of, of_w + tape.gradient(loss, w)

    taken = by_another if nested else gradients
    (one, w_one), (two, w_two) = taken(x), taken((x * 3) % ROWS)
    joined = tf.IndexedSlices(tf.concat([one.values, two.values], 0), tf.concat([one.indices, two.indices], 0))
    clipped, _ = tf.clip_by_global_norm([joined, w_one + w_two], 0.1)
    v1.train.AdagradOptimizer(0.5).apply_gradients(zip(clipped, [emb, w], strict=True))


def update_in_a_function(rows: int) -> Any:
    """Gradients are taken, clipped and applied within a function."""
    emb, w = table(), v1.get_variable("w", [WIDTH, 1])
    x, y = ids(rows), v1.placeholder(tf.float32, [rows, 1], name="y")

    @tf.function
    def train(at: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = _error(tf.nn.embedding_lookup(emb, at) @ w, y)
        (rows_of, of_w), _ = tf.clip_by_global_norm(tape.gradient(loss, [emb, w]), 0.1)
        w.assign_sub(0.5 * of_w)
        emb.scatter_sub(tf.IndexedSlices(0.5 * rows_of.values, rows_of.indices))
        return loss

    return train(x)


def gradient_penalty(rows: int, in_function: bool) -> None:
    """The norm of the output's gradient by the inputs is part of the loss (as in WGAN-GP)."""
    x, y = _features(rows)
    w1, w2 = _weights()

    def penalty(at: Any) -> Any:
        (slope,) = tf.gradients(_output(at, w1, w2), [at])
        return tf.reduce_mean(tf.square(tf.norm(slope + 1e-3, axis=1) - 1.0))

    made = tf.function(penalty) if in_function else penalty
    v1.train.AdagradOptimizer(0.5).minimize(_error(_output(x, w1, w2), y) + made(x))


def adversaries(rows: int) -> Any:
    """Two networks with an optimizer each; the critic has a gradient penalty."""
    x, y = _features(rows)
    with v1.variable_scope("maker"):
        made = _output(x, *_weights()) * tf.ones([1, WIDTH])
    real = y * tf.ones([1, WIDTH])

    def critic(of: Any) -> Any:
        with v1.variable_scope("critic", reuse=v1.AUTO_REUSE):
            return tf.tanh(of @ v1.get_variable("w1", [WIDTH, 3])) @ v1.get_variable("w2", [3, 1])

    (slope,) = tf.gradients(critic(between := 0.5 * (real + made)), [between])
    penalty = tf.reduce_mean(tf.square(tf.norm(slope, axis=1) - 1.0))
    of_critic = tf.reduce_mean(critic(made)) - tf.reduce_mean(critic(real)) + 10.0 * penalty
    of_maker = -tf.reduce_mean(critic(made))
    by_scope = {s: v1.trainable_variables(s) for s in ("maker", "critic")}
    return [
        v1.train.AdamOptimizer(0.02).minimize(of_critic, var_list=by_scope["critic"]),
        v1.train.AdamOptimizer(0.02).minimize(of_maker, var_list=by_scope["maker"]),
    ]


def adapted(rows: int, steps: int, in_function: bool = False) -> None:
    """The loss is that after some steps of gradient descent, and is differentiated through them (MAML)."""
    x, y = _features(rows)
    variables = _weights()

    def after(x: Any, y: Any) -> Any:
        weights = [tf.identity(v) for v in variables]
        for step in range(steps):
            gradients = tf.gradients(_error(_output(x, *weights), y), weights if step else list(variables))
            weights = [w - 2.0 * g for w, g in zip(weights, gradients, strict=True)]
        return _error(_output(tf.reverse(x, [1]), *weights), 2.0 * y)

    made = tf.function(after) if in_function else after
    v1.train.GradientDescentOptimizer(0.5).minimize(made(x, y))


def adapted_by_tape(rows: int) -> None:
    """As `adapted`, by tapes, with one step."""
    x, y = _features(rows)
    w1, w2 = _weights()
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            loss = _error(_output(x, w1, w2), y)
        slope1, slope2 = inner.gradient(loss, [w1, w2])
        after = _error(_output(tf.reverse(x, [1]), w1 - 2.0 * slope1, w2 + slope2), y)
    gradients = outer.gradient(after, [w1, w2])
    v1.train.GradientDescentOptimizer(0.5).apply_gradients(zip(gradients, [w1, w2], strict=True))


def hessian_vector(rows: int, third: bool) -> None:
    """A product of the Hessian and the gradient, or of the derivative after that, is added to the gradient."""
    x, y = _features(rows)
    weights = list(_weights())
    loss = _error(_output(x, *weights), y)
    first = tf.gradients(loss, weights)
    second = tf.gradients(tf.add_n([tf.nn.l2_loss(g) for g in first]), weights)
    used = tf.gradients(tf.add_n([tf.reduce_sum(tf.sin(g)) for g in second]), weights) if third else second
    pairs = [(g + h, w) for g, h, w in zip(first, used, weights, strict=True)]
    v1.train.GradientDescentOptimizer(0.3).apply_gradients(pairs)


def open_shape(rows: int) -> None:
    """A weight and its slots of which no static shape is known."""
    x, y = _features(rows)
    start = v1.placeholder_with_default(tf.reshape(tf.linspace(-1.0, 1.0, ROWS), [ROWS, 1]), None)
    w = v1.get_variable("w", initializer=start, validate_shape=False)
    v1.train.AdamOptimizer(0.05).minimize(_error(tf.ensure_shape(tf.matmul(x, w), [rows, 1]), y))


def open_shape_of_rows(rows: int) -> None:
    """A table and a weight of which only the initial value has a static shape."""
    emb = v1.get_variable("emb", initializer=tf.reshape(tf.linspace(-1.0, 1.0, 44), [ROWS, 4]), validate_shape=False)
    w = v1.get_variable("w", initializer=tf.ones([WIDTH, 1]), validate_shape=False)
    loss = squared(tf.ensure_shape(tf.nn.embedding_lookup(emb, ids(rows)) @ w, [rows, 1]), rows)
    v1.train.AdagradOptimizer(0.5).minimize(loss)


MODELS: dict[str, Callable[[int], Any]] = {
    "repeated inputs": repeated_inputs,
    "gradients in a function": lambda rows: _gradients_in_a_function(rows, False),
    "gradients in nested functions": lambda rows: _gradients_in_a_function(rows, True),
    "update in a function": update_in_a_function,
    "gradient penalty": lambda rows: gradient_penalty(rows, False),
    "gradient penalty in a function": lambda rows: gradient_penalty(rows, True),
    "adversaries": adversaries,
    "adapted once": lambda rows: adapted(rows, 1),
    "adapted twice": lambda rows: adapted(rows, 2),
    "adapted in a function": lambda rows: adapted(rows, 2, in_function=True),
    "adapted by tapes": adapted_by_tape,
    "second gradients": lambda rows: hessian_vector(rows, False),
    "third gradients": lambda rows: hessian_vector(rows, True),
    "open shape": open_shape,
    "open shape of rows": open_shape_of_rows,
}
OF_ROWS = (
    "repeated inputs",
    "gradients in a function",
    "gradients in nested functions",
    "update in a function",
    "open shape of rows",
)
"""The models that look rows up: they are trained by every route."""
OF_GRADIENTS = (
    "adapted once",
    "adapted twice",
    "adapted in a function",
    "adapted by tapes",
    "second gradients",
    "third gradients",
)
"""The models that use gradients of variables within a loss."""
WITH_REFERENCES = ("open shape", "open shape of rows", "adapted twice")
"""The models that are trained with reference variables too."""
