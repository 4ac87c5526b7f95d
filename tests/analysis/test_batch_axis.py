"""Along which axis a tensor is joined: the one process has the workers' one after the other; None where unproven."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from parallax.analysis.batch_axis import MIXED, BatchAxes
from parallax.analysis.capture import capture
from parallax.analysis.propagate import walked

v1 = tf.compat.v1
ROWS = 6

JOINED: dict[str, tuple[Callable[[Any, Any], Any], int | None]] = {
    "a fed tensor": (lambda x, w: x, 0),
    "elementwise with what is equal": (lambda x, w: tf.tanh(x * 2.0 + w[0]), 0),
    "transposed": (lambda x, w: tf.transpose(x, [1, 2, 0]), 2),
    "a new axis in front": (lambda x, w: x[None], 1),
    "a cut along another axis": (lambda x, w: x[:, 1], 0),
    "after an ellipsis": (lambda x, w: tf.transpose(x)[..., 0:1, :], 2),
    "a cut along the batch": (lambda x, w: x[1:], None),
    "flattened": (lambda x, w: tf.reshape(x, [-1]), 0),
    "flattened with time first": (lambda x, w: tf.reshape(tf.transpose(x, [1, 0, 2]), [-1]), MIXED),
    "rows of whole length": (lambda x, w: tf.reshape(x, [-1, 4]), 0),
    "put behind one another along time": (lambda x, w: tf.concat([x, x], 1), 0),
    "put behind one another along the batch": (lambda x, w: tf.concat([x, x], 0), MIXED),
    "a constant among rows of the batch": (lambda x, w: tf.concat([x, tf.ones([1, 3, 4])], 0), None),
    "multiplied by a matrix": (lambda x, w: tf.reshape(x, [-1, 4]) @ w, 0),
    "multiplied by itself": (lambda x, w: tf.matmul(x, x, transpose_b=True), 0),
    "its columns' products": (lambda x, w: tf.matmul(x[:, 0], x[:, 0], transpose_a=True), None),
    "a mean over time": (lambda x, w: tf.reduce_mean(x, 1), 0),
    "a mean over the batch": (lambda x, w: tf.reduce_mean(x, 0), None),
    "a softmax over columns": (lambda x, w: tf.nn.softmax(x), 0),
    "a softmax over the batch": (lambda x, w: tf.nn.softmax(tf.transpose(x)), None),
    "sorted over the batch": (lambda x, w: tf.sort(x, 0), None),
    "stacked": (lambda x, w: tf.stack([x, x], 1), 0),
    "looked up": (lambda x, w: tf.gather(w, tf.cast(x[:, :, 0], tf.int32)), 0),
    "tiled over time": (lambda x, w: tf.tile(x, [1, 2, 1]), 0),
    "reversed over the batch": (lambda x, w: tf.reverse(x, [0]), None),
    "with random numbers of a known shape": (lambda x, w: x * tf.random.uniform([ROWS, 3, 4]), 0),
    "one against all others": (lambda x, w: x[:, None, 0] - x[None, :, 0], None),
}


@pytest.mark.parametrize("case", JOINED)
def test_the_axis_of_the_batch_is_followed_as_far_as_it_is_proven(case: str) -> None:
    build, expected = JOINED[case]
    graph = tf.Graph()
    with graph.as_default():
        x = v1.placeholder(tf.float32, [ROWS, 3, 4], name="x")
        w = v1.get_variable("w", [4, 4], use_resource=True)
        tensor = tf.identity(build(x, w), name="found")
    captured = capture(graph)
    states = walked(captured, (), {}).states
    assert BatchAxes(captured.view, states).of(tensor.name) == expected
