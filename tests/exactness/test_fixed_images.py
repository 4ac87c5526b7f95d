"""Graphs for a fixed batch of images: transposed convolutions, dropped axes, filters that are no variables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.exactness.loss_trials import tried

v1 = tf.compat.v1
ROWS = 8
FEEDS = {
    "x": lambda rng, rows: rng.randn(rows, 4, 4, 3).astype("float32"),
    "y": lambda rng, rows: rng.randint(0, 9, [rows]),
}


def variable(*shape: int) -> Any:
    return v1.get_variable(f"w{len(v1.trainable_variables())}", shape)


def convolve_back(x: Any, y: Any, rows: int) -> Any:
    """A shape in which the batch is as long as a width, and one in which a length is computed."""
    made = tf.nn.conv2d_transpose(x, variable(3, 3, 8, 3), [rows, 8, 8, 8], 2)
    made = v1.nn.depthwise_conv2d_native_backprop_input([rows, 8, 8, 8], variable(3, 3, 8, 1), made, [1] * 4, "SAME")
    made = tf.nn.conv2d_transpose(made, variable(3, 3, 2, 8), tf.stack([rows, 2 * tf.shape(made)[1], 16, 2]), 2)
    return tf.reduce_mean(made, [1, 2, 3])


def convolve_back_volumes(x: Any, y: Any, rows: int) -> Any:
    return tf.reduce_mean(
        tf.nn.conv3d_transpose(x[..., None], variable(3, 3, 3, 8, 1), [rows, 8, 8, 6, 8], 2), [1, 2, 3, 4]
    )


def drop_axes(x: Any, y: Any, rows: int) -> Any:
    columns = tf.split(tf.concat([tf.squeeze(line) for line in tf.split(x, 4, 1)], 2), 4, 1)
    return tf.reduce_sum(tf.add_n([tf.squeeze(column) @ variable(12, 2) for column in columns]), 1)


def convolve_by_constants(x: Any, y: Any, rows: int) -> Any:
    """The filters of a network that another program trained have as many channels as the batch examples."""
    one, other = (np.random.RandomState(n).randn(3, 3, n, 8).astype("float32") for n in (3, 8))
    h = tf.nn.relu(tf.nn.conv2d(x * variable(4, 4, 3), one, 1, "SAME"))
    return tf.reduce_mean(tf.nn.bias_add(tf.nn.conv2d(h, other, 1, "SAME"), other[0, 0, 0]), [1, 2, 3])


def look_up_constants(x: Any, y: Any, rows: int) -> Any:
    words = np.random.RandomState(0).randn(2 * ROWS, 5).astype("float32")
    return tf.reduce_mean(x, [1, 2, 3]) + (tf.nn.embedding_lookup(words, y) @ variable(5, 1))[:, 0]


def add_up_columns(x: Any, y: Any, rows: int) -> Any:
    """Constants that say where weights are name a place by the number of examples."""
    sketch = tf.SparseTensor([[0, 3], [1, ROWS], [2, 0]], [1.0, -1.0, 1.0], [3, ROWS + 2])
    added = tf.sparse.sparse_dense_matmul(sketch, tf.transpose(tf.reduce_mean(x, [1, 2])), adjoint_a=True)
    return (tf.transpose(added) @ variable(ROWS + 2, 1))[:, 0]


def normalize(x: Any, y: Any, rows: int) -> Any:
    """A custom gradient returns the rows beside statistics that depend on their number."""

    @tf.custom_gradient
    def standardize(h: Any) -> Any:
        count = tf.cast(tf.reduce_prod(tf.raw_ops.Shape(input=h)) // 3, tf.float32)
        variance = tf.math.reduce_variance(h, 0) * count / (count - 1.0)
        return (h * 0.5, variance), lambda upstream, _: upstream * 0.5

    h, _ = standardize(tf.reduce_mean(x, [1, 2]))
    return (h @ variable(3, 1))[:, 0]


PROGRAMS: dict[str, Callable[[Any, Any, int], Any]] = {
    "shapes of transposed convolutions": convolve_back,
    "shapes of transposed convolutions of volumes": convolve_back_volumes,
    "all axes of one dropped": drop_axes,
    "constant filters": convolve_by_constants,
    "constant places": add_up_columns,
    "rows beside their statistics": normalize,
    "a constant table": look_up_constants,
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_fixed_batch_of_images_is_opened(program: str) -> None:
    def build(rows: int | None) -> Any:
        x, y = v1.placeholder(tf.float32, [rows, 4, 4, 3], name="x"), v1.placeholder(tf.int64, [rows], name="y")
        weights = tf.cast(y, tf.float32) + 1.0
        errors = tf.square(PROGRAMS[program](x, y, rows or 0) - 1.0)
        loss = tf.reduce_sum(errors * weights) / tf.reduce_sum(weights) + tf.reduce_sum(errors * weights) / (rows or 1)
        return v1.train.AdagradOptimizer(0.1).minimize(loss)

    found = tried(build, FEEDS, is_open=False, rows=ROWS)
    assert (found.kind, found.message, found.notes, found.gathers) == ("equal", "", (), ())
