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
    loss = {loss}
    return v1.train.AdagradOptimizer(0.3).minimize(loss)


def normalised(x, axes, keepdims=False):
    mean, variance = tf.nn.moments(x, axes, keepdims=keepdims)
    return (x - mean) / tf.sqrt(variance + 0.1)
"""
LOSSES = {
    "a root": "tf.sqrt(error + 1e-6) + 0.01 * tf.nn.l2_loss(table)",
    "a product of two means": "error * tf.reduce_mean(tf.abs(out))",
    "the mean and its logarithm": "0.5 * tf.math.log(error + 1.0) + 2.0 * error",
    "a weight made of the loss": "error * tf.stop_gradient(1.0 / (error + 0.1))",
    "data normalised along the batch": "tf.reduce_mean(tf.square(out - normalised(y, [0])))",
    "data normalised as a whole": "tf.reduce_mean(tf.square(out - normalised(y, [0, 1], True)))",
}
GRAPH = """
y = v1.placeholder(tf.float32, [None, 2], name="y")
w = v1.get_variable("w", [2, 2])
out = y @ w
"""


@pytest.mark.parametrize("loss", LOSSES)
def test_such_a_loss_is_that_of_the_joined_batch(loss: str) -> None:
    (outcome,) = try_program(PROGRAM.format(loss=LOSSES[loss]), ["hybrid"]).values()
    assert (outcome.kind, outcome.message) == ("equal", "")


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        ("tf.reduce_mean(tf.square(out))", None),
        ("0.5 * tf.reduce_mean(out * 3.0) / 2.0 + tf.reduce_sum(w * w)", None),
        ("tf.sqrt(tf.reduce_mean(tf.square(out), name='error'))", "error:0 is a mean over the batch"),
        ("tf.reduce_mean(out / tf.reduce_mean(tf.abs(out), 0, name='size'))", "size computes statistics of the batch"),
        ("tf.norm(out)", "norm/Sum"),
    ],
    ids=["a mean", "means and weights", "a root", "statistics", "a norm of the batch"],
)
def test_the_plan_says_what_is_more_or_less_than_a_mean_over_the_batch(loss: str, said: str | None) -> None:
    names = {"tf": tf, "v1": v1}
    with tf.Graph().as_default() as graph:
        exec(f"{GRAPH}loss = {loss}", names)
        v1.train.GradientDescentOptimizer(0.1).minimize(names["loss"])
    notes = analyse(graph).spec.notes
    assert [note for note in notes if said is None or said not in note] == []
    assert bool(notes) == (said is not None)
