"""What Keras's optimizers do with sparse gradients, made the dense gradient's result while a step is traced.

Keras leaves equal rows of a gradient apart, so squares and moments are of parts and not of the sum, and the result is
not that of the dense gradient. Merged before the update they are one row, which is also where an owner takes the rows
of several workers together.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf


@contextmanager
def merged_rows(optimizer: Any) -> Iterator[None]:
    """Within it, `optimizer.apply` sees each row of a sparse gradient once.

    Args:
        optimizer: a Keras optimizer.
    """
    apply = optimizer.apply

    def merging(gradients: Any, trainable_variables: Any = None) -> Any:
        return apply([_merged(gradient) for gradient in gradients], trainable_variables)

    object.__setattr__(optimizer, "apply", merging)
    try:
        yield
    finally:
        object.__delattr__(optimizer, "apply")


def _merged(gradient: Any) -> Any:
    """IndexedSlices with each row once, in the order of first sight; any other gradient as it is."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    rows, places = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, places, tf.shape(rows)[0])
    return tf.IndexedSlices(values, rows, gradient.dense_shape)
