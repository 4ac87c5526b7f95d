"""Means over the batch that a loss is a curved function of, or data are normalised by, are those of all workers."""

from __future__ import annotations

import pytest
import tensorflow as tf

from ops.exactness.trial import try_program
from parallax.analysis.stages import analyse

v1 = tf.compat.v1

PROGRAM = """
import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
F = tf.float64
WORKERS, ROWS, OPEN_BATCH, CONTROL_FLOW_V2 = 3, 4, True, True


def feeds(rng, rows):
    return {{"ids": rng.randint(0, 9, [rows]), "y": rng.randn(rows, 2)}}


def build(rows):
    ids = v1.placeholder(tf.int64, [rows], name="ids")
    y = v1.placeholder(F, [rows, 2], name="y")
    table = v1.get_variable("table", [9, 4], F)
    w = v1.get_variable("w", [4, 2], F)
    out = tf.gather(table, ids) @ w
    error = tf.reduce_mean(tf.square(out - y))
    weights = tf.abs(y)
    loss = {loss}
    return v1.train.AdagradOptimizer(0.3).minimize(loss)


def normalised(x, axes, keepdims=False):
    mean, variance = tf.nn.moments(x, axes, keepdims=keepdims)
    return (x - mean) / tf.sqrt(variance + 0.1)
"""
NEAR = "tf.reduce_mean(tf.boolean_mask(tf.square(out - y), out[:, 0] > -0.1))"
KEPT = "tf.reduce_mean(tf.boolean_mask(tf.square(out - y), y[:, 0] > -0.5))"
SHARE = "tf.reduce_sum(tf.square(out - y) * weights) / (0.1 + tf.reduce_sum(weights))"
LENGTH = "tf.cast(tf.shape(y)[0], F)"
STEP = "w - 0.1 * tf.gradients(error, w)[0]"
LOSSES = {
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
    "a mean times the batch's length": f"error * {LENGTH}",
    "a mean by the logarithm of the length": f"error / tf.math.log(1.0 + {LENGTH})",
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
    "products along the batch by its size": f"tf.einsum('bi,bi->', out, y) / (2.0 * {LENGTH})",
    "a fold by the length": f"tf.foldl(lambda a, e: a + e, tf.reduce_sum(tf.square(out - y), 1)) / {LENGTH}",
    "the root of a sum by the length": f"tf.sqrt(tf.reduce_sum(tf.square(out - y)) / (2.0 * {LENGTH}))",
    "a sum by the length less one": f"tf.reduce_sum(tf.square(out - y)) / ({LENGTH} - 1.0)",
    "a sum by the root of the length": f"tf.reduce_sum(tf.square(out - y)) / tf.sqrt({LENGTH})",
    "rows that the length is added to": f"tf.reduce_mean(tf.square(out - y + 0.1 * {LENGTH}))",
    "a mean by a sum of weights": f"error / (0.1 + tf.reduce_sum(weights)) * {LENGTH}",
    "a mean over a mask, scaled to what is left": (
        f"tf.reduce_mean(tf.square(out - y) * weights) * {LENGTH} / tf.reduce_sum(weights)"
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
        f"error + tf.reduce_mean(tf.square({LENGTH} * tf.gradients(tf.reduce_mean(tf.tanh(out)), out)[0]))"
    ),
    "data normalised along the batch": "tf.reduce_mean(tf.square(out - normalised(y, [0])))",
    "data normalised as a whole": "tf.reduce_mean(tf.square(out - normalised(y, [0, 1], True)))",
}
GRAPH = """
y = v1.placeholder(tf.float32, [None, 2], name="y")
w = v1.get_variable("w", [2, 2])
LENGTH = tf.cast(tf.shape(y)[0], tf.float32)
out = y @ w


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


@pytest.mark.parametrize("loss", LOSSES)
def test_such_a_loss_is_that_of_the_joined_batch(loss: str) -> None:
    (outcome,) = try_program(PROGRAM.format(loss=LOSSES[loss]), ["hybrid"], layouts=False).values()
    assert (outcome.kind, outcome.message) == ("equal", "")


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        ("tf.reduce_mean(tf.square(out))", None),
        ("0.5 * tf.reduce_mean(out * 3.0) / 2.0 + tf.reduce_sum(w * w)", None),
        ("tf.sqrt(tf.reduce_mean(tf.square(out), name='error'))", "error:0 is a mean over the batch"),
        ("tf.reduce_mean(out / tf.reduce_mean(tf.abs(out), 0, name='size'))", "size computes statistics of the batch"),
        ("tf.norm(out)", "norm/Sum"),
        (
            "tf.reduce_mean(tf.square(out - tf.reduce_mean(tf.boolean_mask(out, y[:, 0] > 0.0), name='center')))",
            "center computes statistics of the batch",
        ),
        ("tf.reduce_sum(tf.reduce_mean(tf.square(out), 0))", None),
        ("tf.reduce_mean(tf.norm(tf.gradients(tf.reduce_sum(tf.tanh(out)), y)[0], axis=1))", None),
        ("tf.reduce_sum(tf.square(out) / LENGTH) + tf.reduce_sum(out) * (1.0 / LENGTH)", None),
        ("tf.reduce_sum(out) / (LENGTH * tf.cast(tf.shape(out)[1], tf.float32) + 1e-8)", None),
        ("tf.reduce_sum(tf.square(out), name='all') / tf.cast(tf.shape(y)[1], tf.float32)", "grows with the length"),
        ("tf.reduce_sum(out) / LENGTH + tf.reduce_sum(w * w) / LENGTH", "takes the length of each worker's batch"),
        ("tf.reduce_mean(out * tf.cast(tf.size(tf.unique(y[:, 0])[0]), tf.float32))", "how many distinct values"),
        ("tf.reduce_mean(out[:, 0] * tf.cast(tf.range(tf.shape(y)[0]), tf.float32))", "the places of its examples"),
        ("tf.reduce_mean(out + tf.gather(w, tf.range(tf.shape(y)[0]) % 2))", "the places of its examples"),
        ("tf.reduce_mean(out * tf.one_hot(tf.range(tf.shape(y)[0]) % 2, 2))", "the places of its examples"),
        ("0.1 * tf.einsum('bi,bi->', out, y)", "grows with the length"),
        ("mean_of(y) + mean_of(moved(lambda g: g))", "adds to the examples"),
        ("mean_of(moved(lambda g: g / tf.norm(g)))", "adds to the examples"),
        ("mean_of(moved(tf.sign)) + mean_of(moved(lambda g: tf.nn.l2_normalize(g, 1)))", None),
        ("mean_of(y) + tf.reduce_mean(tf.square(by_examples(mean_tanh)))", "takes gradients of a mean over the batch"),
        ("mean_of(y) + tf.reduce_mean((length(by_examples(mean_tanh)) - 1.0) ** 2)", "takes gradients of a mean"),
        (
            "mean_of(y) + tf.reduce_mean(by_examples(lambda x: tf.reduce_sum(tf.tanh(x @ w)) * (1.0 / LENGTH)) ** 2)",
            "takes gradients of a mean",
        ),
        (
            "(lambda x: mean_of(y) + tf.reduce_sum(tf.reduce_mean(x @ tf.zeros([2, 0]), 0)) + tf.reduce_mean("
            "tf.square(by_examples(mean_tanh, x))))(v1.placeholder(tf.float32, [6, 2]))",
            "takes gradients of a mean over the batch",
        ),
        ("tf.reduce_mean(tf.square(by_examples(mean_tanh)))", "is made of gradients of a mean over the batch"),
        (
            "(lambda x: mean_of(y) + tf.reduce_mean(tf.square(by_examples(mean_tanh, x))))"
            "(v1.placeholder(tf.float32, [6, 2]))",
            "takes gradients of a mean over the batch",
        ),
        (
            "mean_of(y) + tf.reduce_mean((length(by_examples(sum_tanh)) - 1.0) ** 2 + length(by_examples("
            "lambda x: tf.reduce_mean(tf.tanh(x @ w), 1))) ** 2)",
            None,
        ),
        ("tf.reduce_mean(tf.square(by_examples(lambda x: tf.tanh(x @ w))[:, 0] + tf.sin(y[:, 1])))", None),
        ("tf.reduce_mean(tf.square(LENGTH * by_examples(mean_tanh)))", None),
        (
            "(lambda a, b: tf.reduce_mean(tf.reduce_sum(a * b, 1) / (length(a) * length(b) + 1e-12)))"
            "(by_examples(mean_tanh), by_examples(mean_of))",
            None,
        ),
        ("mean_of(y) + 0.1 * tf.nn.l2_loss(tf.gradients(mean_of(y), w)[0])", None),
        ("(lambda u: mean_of(y) + tf.norm(tf.gradients(mean_tanh(y @ u), u)[0]))(2.0 * w)", None),
        ("tf.reduce_mean(tf.tanh(y @ (w - 0.1 * tf.gradients(mean_of(y), w)[0])))", None),
        ("mean_of(y) + tf.reduce_sum(0.3 * tf.gradients(mean_of(y), w)[0])", None),
        ("mean_of(y) + tf.norm(tf.reduce_sum(by_examples(mean_tanh), 0))", "makes more than sums of gradients"),
        ("sent_back(lambda dy: dy / tf.norm(dy))", "takes together, on their way back"),
        ("sent_back(lambda dy: dy - tf.reduce_mean(dy, 0))", "takes together, on their way back"),
        ("sent_back(lambda dy: tf.clip_by_value(dy, -0.1, 0.1))", "bends gradients on their way back"),
        ("sent_back(lambda dy: tf.clip_by_norm(dy, 0.1))", "bends gradients on their way back"),
        ("sent_back(tf.sign)", "bends gradients on their way back"),
        ("sent_back(lambda dy: tf.nn.l2_normalize(dy, 1))", "bends gradients on their way back"),
        ("sent_back(lambda dy: tf.nn.l2_normalize(dy, 1) / LENGTH)", None),
        ("sent_back(lambda dy: tf.where(dy > 0.0, -dy, 0.5 * dy)) + sent_back(lambda dy: tf.nn.relu(dy * out))", None),
        ("sent_back(lambda dy: tf.sign(dy) * tf.norm(dy, axis=1, keepdims=True))", None),
        ("tf.reduce_mean(tf.abs(tf.signal.rfft(out, [2])))", None),
        ("0.1 * tf.einsum('b,b->', out[:, 0], v1.placeholder(tf.float32, [None]))", "grows with the length"),
    ],
    ids=[
        *("a mean", "means and weights", "a root", "statistics", "a norm of the batch", "the center of what is chosen"),
        *(
            "means by column",
            "a penalty for a gradient",
            "sums by the length",
            "a sum by both lengths",
            "a sum by the width",
            "weights by the length",
            "distinct values",
        ),
        "places",
        "rows by place",
        "columns by place",
        "a sum of products",
        "examples moved along their gradients",
        "examples moved along their gradients' direction",
        "examples moved by signs and directions of their own",
        *("a penalty for a mean's gradient", "a penalty for a mean's gradient that is not of length one"),
        *("a penalty for the gradient of a sum by the inverse length", "a penalty beside a mean of no columns"),
        *("nothing but a penalty for a mean's gradient", "a penalty for the gradient of a mean of fixed length"),
        *("penalties for gradients of sums and of each example's mean", "an equation of derivatives"),
        *("gradients of a mean by the length", "the angle of two gradients"),
        *("the length of a variable's gradient", "the length of a tensor's gradient"),
        *("a step that a loss is taken after", "a sum of a tensor's gradient", "the length of the sum of gradients"),
        *("gradients sent back by their length", "gradients sent back around their mean"),
        *("gradients sent back within bounds", "gradients sent back up to a length", "signs sent back"),
        *("directions sent back", "directions sent back by the batch's length"),
        *("gradients sent back by their signs", "gradients sent back of equal size"),
        *("gradients of a transform", "a sum of products of rows"),
    ],
)
def test_the_plan_says_what_is_more_or_less_than_a_mean_over_the_batch(loss: str, said: str | None) -> None:
    names = {"tf": tf, "v1": v1}
    with tf.Graph().as_default() as graph:
        exec(f"{GRAPH}loss = {loss}", names)
        v1.train.GradientDescentOptimizer(0.1).minimize(names["loss"])
    notes = analyse(graph, layouts=False).spec.notes
    assert [note for note in notes if said is None or said not in note] == []
    assert bool(notes) == (said is not None)
