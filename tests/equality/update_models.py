"""Small graphs that train by updates of the user's own: in a condition, into accumulators, with rows written back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tests.equality.models import ROWS, WIDTH, dense, ids, squared, table

v1 = tf.compat.v1


def _old_control_flow(build: Callable[[int], Any]) -> Callable[[int], Any]:
    """The same graph with Switch and Merge in place of If."""

    def built(rows: int) -> Any:
        v1.disable_control_flow_v2()
        try:
            return build(rows)
        finally:
            v1.enable_control_flow_v2()

    return built


def _loss(rows: int) -> Any:
    return squared(dense(tf.nn.embedding_lookup(table(), ids(rows))), rows)


def _values(gradient: Any) -> Any:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def if_all_finite(rows: int) -> Any:
    """The step is skipped where a gradient is not finite, as scaled losses need it; clipped within the branch."""
    made = v1.train.AdamOptimizer(0.05)
    gradients, variables = zip(*made.compute_gradients(_loss(rows)), strict=True)
    finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(_values(g))) for g in gradients])

    def update() -> Any:
        clipped, _ = tf.clip_by_global_norm(gradients, 0.1)
        return made.apply_gradients(zip(clipped, variables, strict=True))

    return _op(tf.cond(finite, update, tf.no_op))


def every_second_step(rows: int) -> Any:
    """Gradients are added up in variables of the user's; a counter says when they are applied and set to zero."""
    emb, x = table(), ids(rows)
    w = v1.get_variable("w", [WIDTH, 1])
    loss = squared(tf.nn.embedding_lookup(emb, x) @ w, rows)
    g_emb, g_w = tf.gradients(loss, [emb, w])
    kept_emb = table("kept_emb", initializer=tf.zeros_initializer(), trainable=False)
    kept_w = v1.get_variable("kept_w", [WIDTH, 1], initializer=tf.zeros_initializer(), trainable=False)
    step = v1.train.get_or_create_global_step()
    made = v1.train.GradientDescentOptimizer(0.5)
    kept = [v1.scatter_add(kept_emb, g_emb.indices, g_emb.values), v1.assign_add(kept_w, g_w), v1.assign_add(step, 1)]

    def update() -> Any:
        whole = [(tf.convert_to_tensor(kept_emb) / 2.0, emb), (tf.convert_to_tensor(kept_w) / 2.0, w)]
        with v1.control_dependencies([made.apply_gradients(whole)]):
            return tf.group(v1.assign(kept_emb, tf.zeros([ROWS, WIDTH])).op, v1.assign(kept_w, tf.zeros([WIDTH, 1])).op)

    with v1.control_dependencies([tf.convert_to_tensor(k) for k in kept]):
        counted = tf.identity(v1.assign_add(step, 0) if not hasattr(step, "read_value") else step.read_value())
    with v1.control_dependencies([counted]):
        return _op(tf.cond(tf.equal(counted % 2, 0), update, tf.no_op))


def if_small_loss(rows: int) -> Any:
    """A step is taken where the loss of the whole batch is below a bound that it crosses."""
    made = v1.train.GradientDescentOptimizer(0.2)
    loss = _loss(rows)
    pairs = made.compute_gradients(loss)
    return _op(tf.cond(loss < 1.2, lambda: made.apply_gradients(pairs), tf.no_op))


def gradient_in_a_branch(rows: int) -> Any:
    """Every second step trains once more, by a gradient that is computed in the branch."""
    emb, x = table(), ids(rows)
    y = v1.placeholder(tf.float32, [rows, 1], name="y")
    w = v1.get_variable("w", [WIDTH, 1])
    step = v1.train.get_or_create_global_step()

    def loss() -> Any:
        return tf.reduce_mean(tf.square(tf.nn.embedding_lookup(emb, x) @ w - y))

    train = v1.train.GradientDescentOptimizer(0.1).minimize(loss(), global_step=step)
    with v1.control_dependencies([train]):
        again = tf.equal(step.read_value() % 2, 0)

    def update() -> Any:
        return tf.group(v1.assign_sub(w, 0.1 * tf.gradients(loss(), [w])[0]))

    return _op(tf.cond(again, update, tf.no_op))


def _op(tensor: Any) -> Any:
    return tensor if isinstance(tensor, tf.Operation) else tensor.op


def accumulator(rows: int) -> Any:
    """Gradient rows are added to a variable of the user's, whose value is then the gradient."""
    emb, x = table(), ids(rows)
    (g,) = tf.gradients(squared(dense(tf.nn.embedding_lookup(emb, x)), rows), [emb])
    total = table("total", initializer=tf.zeros_initializer(), trainable=False)
    with v1.control_dependencies([v1.scatter_add(total, g.indices, g.values)]):
        return v1.train.GradientDescentOptimizer(0.1).apply_gradients([(total.read_value(), emb)])


def row_wise_adagrad(rows: int) -> Any:
    """One number a row: the squares of its gradient's mean, added up."""
    emb, x = table(), ids(rows)
    (g,) = tf.gradients(squared(dense(tf.nn.embedding_lookup(emb, x)), rows), [emb])
    seen = v1.get_variable("seen", [ROWS, 1], initializer=tf.ones_initializer(), trainable=False)
    squares = tf.reduce_mean(tf.square(g.values), 1, keepdims=True)
    with v1.control_dependencies([v1.scatter_add(seen, g.indices, squares)]):
        rate = tf.math.rsqrt(tf.gather(seen.read_value(), g.indices))
        return _op(v1.scatter_sub(emb, g.indices, 0.1 * g.values * rate))


def momentum_by_hand(rows: int) -> Any:
    """Momentum of touched rows: gathered, decayed, and written back."""
    emb, x = table(), ids(rows)
    (g,) = tf.gradients(squared(dense(tf.nn.embedding_lookup(emb, x)), rows), [emb])
    kept = table("kept", initializer=tf.zeros_initializer(), trainable=False)
    at, place = tf.unique(g.indices)
    values = tf.math.unsorted_segment_sum(g.values, place, tf.size(at))
    moved = 0.9 * tf.gather(kept, at) + values
    with v1.control_dependencies([moved]):
        write = v1.scatter_update(kept, at, moved)
    with v1.control_dependencies([write]):
        return _op(v1.scatter_sub(emb, at, 0.1 * moved))


def renormalised(rows: int) -> Any:
    """After the update the rows that were looked up are brought to length 1, as models of knowledge graphs do."""
    emb, x = table(), ids(rows)
    train = v1.train.AdagradOptimizer(0.5).minimize(squared(dense(tf.nn.embedding_lookup(emb, x)), rows))
    with v1.control_dependencies([train]):
        again = tf.math.l2_normalize(tf.gather(emb.read_value(), x), 1)
        return _op(v1.scatter_update(emb, x, again))


def noise_on_gradients(rows: int) -> Any:
    """Noise is added to a dense gradient: one process draws it once."""
    made = v1.train.GradientDescentOptimizer(0.1)
    pairs = [
        (g if isinstance(g, tf.IndexedSlices) else g + 0.1 * tf.random.normal(tf.shape(g), seed=5), v)
        for g, v in made.compute_gradients(_loss(rows))
    ]
    return made.apply_gradients(pairs)


def sums_and_differences(rows: int) -> Any:
    """Rows gathered from what is computed of two tables: both get one tensor of row numbers."""
    a, b, x = table("a"), table("b"), ids(rows)
    h = tf.gather(a + b, x) + tf.gather(tf.concat([a, b], 1), x)[:, :WIDTH]
    return v1.train.AdagradOptimizer(0.5).minimize(squared(dense(h), rows))


MODELS: dict[str, Callable[[int], Any]] = {
    "if all finite": if_all_finite,
    "if all finite, old": _old_control_flow(if_all_finite),
    "every second step": every_second_step,
    "every second step, old": _old_control_flow(every_second_step),
    "gradient in a branch": gradient_in_a_branch,
    "accumulator": accumulator,
    "row-wise adagrad": row_wise_adagrad,
    "momentum by hand": momentum_by_hand,
    "renormalised": renormalised,
    "noise on gradients": noise_on_gradients,
    "sums of tables": sums_and_differences,
}
RESOURCE_ONLY = ("if all finite", "every second step", "gradient in a branch")
"""TensorFlow makes no updates of reference variables in conditionals of the new kind."""
