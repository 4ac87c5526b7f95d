"""Losses that are more or less than a mean: those of the global batch, for workers with unequal shares.

Every loss has variables of its own, and several are one graph: what differs is named by the variables.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
import tensorflow as tf

from tests.exactness.loss_trials import tried

v1 = tf.compat.v1
F = tf.float64

PROGRAM = """
LENGTH = tf.cast(tf.shape(y)[0], F)
weights = tf.abs(y)


def normalised(x, axes, keepdims=False):
    mean, variance = tf.nn.moments(x, axes, keepdims=keepdims)
    return (x - mean) / tf.sqrt(variance + 0.1)


def mean_of(x):
    return tf.reduce_mean(tf.square(x @ w - 1.0))


def by_examples(critic, x=y):
    return tf.gradients(critic(x), x)[0]


def mean_tanh(x):
    return tf.reduce_mean(tf.tanh(x @ w))


def sum_tanh(x):
    return tf.reduce_sum(tf.tanh(x @ w))


def length(rows):
    return tf.sqrt(tf.reduce_sum(tf.square(rows), 1) + 1e-8)


def sent_back(by):
    return tf.reduce_mean(tf.square(tf.custom_gradient(lambda rows: (rows, by))(out) - 1.0))


def moved(by):
    return y + 0.1 * tf.stop_gradient(by(tf.gradients(mean_of(y), y)[0]))
"""
"""What losses are made of, beside `ids`, `x` and `y` (fed), `table`, `w` and `out`, which is of `ids` or of `y`."""
NEAR = "tf.reduce_mean(tf.boolean_mask(tf.square(out - y), out[:, 0] > -0.1))"
KEPT = "tf.reduce_mean(tf.boolean_mask(tf.square(out - y), y[:, 0] > -0.5))"
SHARE = "tf.reduce_sum(tf.square(out - y) * weights) / (0.1 + tf.reduce_sum(weights))"
STEP = "w - 0.1 * tf.gradients(error, w)[0]"
CURVED = {
    "a root": "tf.sqrt(error + 1e-6) + 0.01 * tf.nn.l2_loss(table)",
    "a product of two means": "error * tf.reduce_mean(tf.abs(out))",
    "the mean and its logarithm": "0.5 * tf.math.log(error + 1.0) + 2.0 * error",
    "a weight made of the loss": "error * tf.stop_gradient(1.0 / (error + 0.1))",
    "the square of a mean over a mask": f"tf.square({KEPT})",
    "the logarithm of a mean over what is near": f"tf.math.log({NEAR} + 1.0) + 0.1 * {KEPT}",
    "a product of means over masks": f"{KEPT} * {NEAR}",
    "a quotient of means over masks": f"{NEAR} / (0.5 + {KEPT})",
    "a mean by a mean over a mask": f"error / (0.5 + {KEPT})",
    "a weight made of a mean over a mask": f"error * tf.stop_gradient({KEPT})",
    "data less the mean of what is chosen": (
        "tf.reduce_mean(tf.square(out[:, 0] - tf.reduce_mean(tf.boolean_mask(y[:, 0], y[:, 1] > -0.5))))"
    ),
    "the root of a weighed mean": f"tf.sqrt({SHARE})",
    "a weight made of a weighed mean": f"error * tf.stop_gradient({SHARE})",
    "data less their weighed mean": (
        "tf.reduce_mean(tf.square(out - tf.reduce_sum(y * weights) / tf.reduce_sum(weights)))"
    ),
    "a mean times the batch's length": "error * LENGTH",
    "a mean by the logarithm of the length": "error / tf.math.log(1.0 + LENGTH)",
    "an error by the variance of the targets": "error / tf.math.reduce_variance(y)",
    "an error by the deviation of the targets, and by no less than something": (
        "tf.reduce_mean(tf.abs(out - y)) / tf.maximum(tf.reduce_mean(tf.abs(y - tf.reduce_mean(y, 0))), 1e-6)"
    ),
    "roots of means by column": "tf.reduce_mean(tf.sqrt(tf.reduce_mean(tf.square(out - y), 0)))",
    "the entropy of a mean": ("error + tf.reduce_sum(tf.math.xlogy(*[tf.reduce_mean(tf.nn.softmax(out), 0)] * 2))"),
    "the least of means by column": "error + tf.reduce_sum(tf.maximum(tf.reduce_mean(tf.square(out), 0), 0.2))",
    "the distance of two means": ("tf.reduce_sum(tf.square(tf.reduce_mean(out, 0) - tf.reduce_mean(y, 0)))"),
    "losses weighed by a softmax of them": "tf.reduce_logsumexp(tf.stack([error, tf.reduce_mean(tf.abs(out))]))",
    "advantages made of estimates, normalised": (
        "tf.reduce_mean(out * normalised(tf.stop_gradient(y - out), [0, 1])) + error"
    ),
    "products along the batch by its size": "tf.einsum('bi,bi->', out, y) / (2.0 * LENGTH)",
    "weights that a loop divides by the length": (
        "tf.reduce_mean(tf.square(out - y) @ tf.map_fn(lambda k: k / LENGTH, tf.constant([1.0, 2.0], F))[:, None])"
    ),
    "the first half of some, by a loop": (
        "(lambda kept: tf.reduce_mean(tf.square(tf.map_fn(tf.tanh, out) * tf.cast(kept < LENGTH / 2.0, F) - y)))"
        "(tf.cumsum(tf.cast(y > 0.0, F)))"
    ),
    "a fold by the length": "tf.foldl(lambda a, e: a + e, tf.reduce_sum(tf.square(out - y), 1)) / LENGTH",
    "the root of a sum by the length": "tf.sqrt(tf.reduce_sum(tf.square(out - y)) / (2.0 * LENGTH))",
    "a sum by the length less one": "tf.reduce_sum(tf.square(out - y)) / (LENGTH - 1.0)",
    "a sum by the root of the length": "tf.reduce_sum(tf.square(out - y)) / tf.sqrt(LENGTH)",
    "rows that the length is added to": "tf.reduce_mean(tf.square(out - y + 0.1 * LENGTH))",
    "a mean by a sum of weights": "error / (0.1 + tf.reduce_sum(weights)) * LENGTH",
    "a mean over a mask, scaled to what is left": (
        "tf.reduce_mean(tf.square(out - y) * weights) * LENGTH / tf.reduce_sum(weights)"
    ),
    "a weight by a sum of weights": "error + w[0, 0] / tf.reduce_sum(weights)",
    "a sum times the inverse of a sum of weights": (
        "tf.reduce_sum(tf.square(out - y) * weights) * (1.0 / tf.reduce_sum(weights))"
    ),
    "a quotient over elements of a sequence": (
        "(lambda s: tf.reduce_sum(tf.square(s) * weights[:, None]) / tf.reduce_sum(weights))"
        "(tf.tensordot(tf.stack([out, y], 1), w[:2], 1))"
    ),
    "the length of a variable's gradient": "error + 0.1 * tf.norm(tf.gradients(error, w)[0])",
    "a step that the loss is taken after": f"tf.reduce_mean(tf.square(tf.gather(table, ids) @ ({STEP}) - y))",
    "a penalty for the gradient of a sum": (
        "error + tf.reduce_mean(tf.square(tf.gradients(tf.reduce_sum(tf.tanh(out)), out)[0]))"
    ),
    "the gradient of a mean, times the length": (
        "error + tf.reduce_mean(tf.square(LENGTH * tf.gradients(tf.reduce_mean(tf.tanh(out)), out)[0]))"
    ),
    "data normalised along the batch": "tf.reduce_mean(tf.square(out - normalised(y, [0])))",
    "data normalised as a whole": "tf.reduce_mean(tf.square(out - normalised(y, [0, 1], True)))",
}
EACH = "tf.reduce_sum(tf.square(out - y), 1)"
KEPT = "y[:, 0] > -0.5"
NEAR = "out[:, 0] > -0.1"
"""Depends on the trained variables, and has no gradient by them."""
MASKED = {
    "a mean of what is near": f"tf.reduce_mean(tf.boolean_mask({EACH}, {NEAR}))",
    "a mean of what is near, added": f"error + 0.1 * tf.reduce_mean(tf.boolean_mask(out, {NEAR}))",
    "a sum by a count": f"tf.reduce_sum(tf.boolean_mask({EACH}, {KEPT})) / tf.cast(tf.math.count_nonzero({KEPT}), F)",
    "a sum by a length": (
        f"tf.reduce_sum(tf.boolean_mask({EACH}, {KEPT})) / tf.cast(tf.shape(tf.boolean_mask(y, {KEPT}))[0], F)"
    ),
    "a sum by a size": (
        f"tf.reduce_sum(tf.boolean_mask({EACH}, {KEPT})) / tf.cast(tf.size(tf.boolean_mask(y, {KEPT})), F)"
    ),
    "a sum by how many are near": (
        f"tf.reduce_sum({EACH} * tf.cast({NEAR}, F)) / (1e-3 + tf.reduce_sum(tf.cast({NEAR}, F)))"
    ),
    "a sum by weights without a gradient": (
        f"tf.reduce_sum({EACH}) / (0.1 + tf.reduce_sum(tf.stop_gradient(tf.square(out[:, 0]))))"
    ),
    "products by weights": "tf.einsum('bi,bi->', tf.square(out - y), tf.abs(y)) / tf.reduce_sum(tf.abs(y))",
    "a quotient that a function gives": (
        f"tf.function(lambda e, k: tf.reduce_sum(e * k) / tf.reduce_sum(k))({EACH}, tf.cast({KEPT}, F))"
    ),
    "the root of a quotient that a function within another gives": (
        "tf.function(lambda e, k: tf.sqrt(tf.function(lambda a, b: tf.reduce_sum(a * b) / tf.reduce_sum(b))(e, k)))"
        f"({EACH}, tf.cast({KEPT}, F))"
    ),
    "a mean of what a function chooses": (
        f"tf.function(lambda e, k: tf.reduce_mean(tf.boolean_mask(e, k)))({EACH}, {KEPT})"
    ),
    "the root of a mean that a function gives": f"tf.function(lambda e: tf.sqrt(tf.reduce_mean(e)))({EACH})",
}


OF_TARGETS = {
    "a mean": "tf.reduce_mean(tf.square(out))",
    "means and weights": "0.5 * tf.reduce_mean(out * 3.0) / 2.0 + tf.reduce_sum(w * w)",
    "a root": "tf.sqrt(tf.reduce_mean(tf.square(out)))",
    "statistics": "tf.reduce_mean(out / tf.reduce_mean(tf.abs(out), 0))",
    "a norm of the batch": "tf.norm(out)",
    "the center of what is chosen": (
        "tf.reduce_mean(tf.square(out - tf.reduce_mean(tf.boolean_mask(out, y[:, 0] > 0.0))))"
    ),
    "means by column": "tf.reduce_sum(tf.reduce_mean(tf.square(out), 0))",
    "a penalty for a gradient": "tf.reduce_mean(tf.norm(tf.gradients(tf.reduce_sum(tf.tanh(out)), y)[0], axis=1))",
    "sums by the length": "tf.reduce_sum(tf.square(out) / LENGTH) + tf.reduce_sum(out) * (1.0 / LENGTH)",
    "a sum by both lengths": "tf.reduce_sum(out) / (LENGTH * tf.cast(tf.shape(out)[1], F) + 1e-8)",
    "a sum by the width": "tf.reduce_sum(tf.square(out)) / tf.cast(tf.shape(y)[1], F)",
    "weights by the length": "tf.reduce_sum(out) / LENGTH + tf.reduce_sum(w * w) / LENGTH",
    "distinct values": "tf.reduce_mean(out * tf.cast(tf.size(tf.unique(y[:, 0])[0]), F))",
    "places": "tf.reduce_mean(out[:, 0] * tf.cast(tf.range(tf.shape(y)[0]), F))",
    "places between two numbers": "tf.reduce_mean(out[:, 0] * tf.linspace(tf.cast(0, F), 1, tf.shape(y)[0]))",
    "the first place": "tf.reduce_sum(out[:, 0] * tf.concat([tf.ones([1], F), tf.zeros([tf.shape(y)[0] - 1], F)], 0))",
    "places before the last": (
        "tf.reduce_sum(out[:, 0] * tf.concat([tf.ones([tf.shape(y)[0] - 2], F), 2 * tf.ones([2], F)], 0))"
    ),
    "constants drawn by place": "tf.reduce_mean(out * tf.random.stateless_normal(tf.shape(y), [1, 2], dtype=F))",
    "rows by place": "tf.reduce_mean(out + tf.gather(w, tf.range(tf.shape(y)[0]) % 2))",
    "columns by place": "tf.reduce_mean(out * tf.one_hot(tf.range(tf.shape(y)[0]) % 2, 2, dtype=F))",
    "a sum of products": "0.1 * tf.einsum('bi,bi->', out, y)",
    "examples moved along their gradients": "mean_of(y) + mean_of(moved(lambda g: g))",
    "examples moved along their gradients' direction": "mean_of(moved(lambda g: g / tf.norm(g)))",
    "examples moved by signs and directions of their own": (
        "mean_of(moved(tf.sign)) + mean_of(moved(lambda g: tf.nn.l2_normalize(g, 1)))"
    ),
    "a penalty for a mean's gradient": "mean_of(y) + tf.reduce_mean(tf.square(by_examples(mean_tanh)))",
    "a penalty for a mean's gradient that is not of length one": (
        "mean_of(y) + tf.reduce_mean((length(by_examples(mean_tanh)) - 1.0) ** 2)"
    ),
    "a penalty for the gradient of a sum by the inverse length": (
        "mean_of(y) + tf.reduce_mean(by_examples(lambda x: tf.reduce_sum(tf.tanh(x @ w)) * (1.0 / LENGTH)) ** 2)"
    ),
    "a penalty beside a mean of no columns": (
        "(lambda x: mean_of(y) + tf.reduce_sum(tf.reduce_mean(x @ tf.zeros([2, 0], F), 0)) + "
        "tf.reduce_mean(tf.square(by_examples(mean_tanh, x))))(x)"
    ),
    "nothing but a penalty for a mean's gradient": "tf.reduce_mean(tf.square(by_examples(mean_tanh)))",
    "a penalty for the gradient of another's mean": (
        "(lambda x: mean_of(y) + tf.reduce_mean(tf.square(by_examples(mean_tanh, x))))(x)"
    ),
    "penalties for gradients of sums and of each example's mean": (
        "mean_of(y) + tf.reduce_mean((length(by_examples(sum_tanh)) - 1.0) ** 2 + "
        "length(by_examples(lambda x: tf.reduce_mean(tf.tanh(x @ w), 1))) ** 2)"
    ),
    "an equation of derivatives": (
        "tf.reduce_mean(tf.square(by_examples(lambda x: tf.tanh(x @ w))[:, 0] + tf.sin(y[:, 1])))"
    ),
    "gradients of a mean by the length": "tf.reduce_mean(tf.square(LENGTH * by_examples(mean_tanh)))",
    "the angle of two gradients": (
        "(lambda a, b: tf.reduce_mean(tf.reduce_sum(a * b, 1) / (length(a) * length(b) + "
        "1e-12)))(by_examples(mean_tanh), by_examples(mean_of))"
    ),
    "the length of a variable's gradient": "mean_of(y) + 0.1 * tf.nn.l2_loss(tf.gradients(mean_of(y), w)[0])",
    "the length of a tensor's gradient": (
        "(lambda u: mean_of(y) + tf.norm(tf.gradients(mean_tanh(y @ u), u)[0]))(2.0 * w)"
    ),
    "a step that a loss is taken after": "tf.reduce_mean(tf.tanh(y @ (w - 0.1 * tf.gradients(mean_of(y), w)[0])))",
    "a sum of a tensor's gradient": "mean_of(y) + tf.reduce_sum(0.3 * tf.gradients(mean_of(y), w)[0])",
    "the length of the sum of gradients": "mean_of(y) + tf.norm(tf.reduce_sum(by_examples(mean_tanh), 0))",
    "gradients sent back by their length": "sent_back(lambda dy: dy / tf.norm(dy))",
    "gradients sent back around their mean": "sent_back(lambda dy: dy - tf.reduce_mean(dy, 0))",
    "gradients sent back within bounds": "sent_back(lambda dy: tf.clip_by_value(dy, -0.1, 0.1))",
    "gradients sent back up to a length": "sent_back(lambda dy: tf.clip_by_norm(dy, 0.1))",
    "signs sent back": "sent_back(tf.sign)",
    "directions sent back": "sent_back(lambda dy: tf.nn.l2_normalize(dy, 1))",
    "directions sent back by the batch's length": "sent_back(lambda dy: tf.nn.l2_normalize(dy, 1) / LENGTH)",
    "gradients sent back by their signs": (
        "sent_back(lambda dy: tf.where(dy > 0.0, -dy, 0.5 * dy)) + sent_back(lambda dy: tf.nn.relu(dy * out))"
    ),
    "gradients sent back of equal size": "sent_back(lambda dy: tf.sign(dy) * tf.norm(dy, axis=1, keepdims=True))",
    "gradients of a transform": "tf.reduce_mean(tf.abs(tf.signal.rfft(out, [2])))",
    "a sum of products of rows": "0.1 * tf.einsum('b,b->', out[:, 0], x[:, 0])",
}
"""Here `out` is made of `y`, by which losses have gradients."""
BY_NAME = {"curved": CURVED, "masked": MASKED, "of targets": OF_TARGETS}
AT_ONCE = 11


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("kind", "first"), [(kind, first) for kind, losses in BY_NAME.items() for first in range(0, len(losses), AT_ONCE)]
)
def test_losses_are_those_of_the_global_batch(kind: str, first: int) -> None:
    losses = list(BY_NAME[kind].items())[first : first + AT_ONCE]

    def build(rows: int | None) -> Any:
        ids = v1.placeholder(tf.int64, [rows], name="ids")
        x, y = (v1.placeholder(F, [rows, 2], name=name) for name in "xy")
        total = []
        for name, loss in losses:
            initial = v1.random_uniform_initializer(-0.7, 0.7, seed=5)
            with v1.variable_scope(re.sub("[^a-z]", "_", name), initializer=initial, dtype=F, use_resource=True):
                table, w = v1.get_variable("table", [9, 4]), v1.get_variable("w", [2 if kind == "of targets" else 4, 2])
            out = y @ w if kind == "of targets" else tf.gather(table, ids) @ w
            names = {"tf": tf, "v1": v1, "F": F, "ids": ids, "x": x, "y": y, "table": table, "w": w, "out": out}
            exec(f"{PROGRAM}error = tf.reduce_mean(tf.square(out - y))\nloss = {loss}", names)
            total.append(tf.reduce_sum(names["loss"]) + 0.01 * tf.reduce_mean(tf.gather(table, ids)))
        return v1.train.AdagradOptimizer(0.1).minimize(tf.add_n(total))

    feeds = {
        "ids": lambda rng, rows: rng.randint(0, 9, [rows]),
        "x": lambda rng, rows: rng.randn(rows, 2),
        "y": lambda rng, rows: rng.randn(rows, 2),
    }
    found = tried(build, feeds, dtype="float64")
    assert (found.kind, found.message) == ("equal", "")
