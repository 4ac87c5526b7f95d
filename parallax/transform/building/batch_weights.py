"""Each worker's share of the examples of a step, where per-worker batches may have unequal lengths.

Shares add up to 1 over the workers. A worker without examples computes on a stand-in (batches/split_batch.py), which
contributes nothing: a product with a share of 0 is 0, whatever the other factor; sums and extremes over the workers
exclude the worker; and it sends no gradient rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

from parallax.base.types import Tensor

_OF_OTHERS = (
    "The number of an example of {!r}, times its entries, plus an offset, must be an entry of the worker's examples, "
    "but an offset is negative or not below the entries of an example. Keep each offset within its example."
)


@dataclass(frozen=True, slots=True)
class BatchWeight:
    """A worker's share of one step's batch.

    Attributes:
        source: the tensor of the user's graph whose first dimension is the batch.
        rows: the number of examples of all workers; a scalar of type int64.
        fraction: this worker's fraction of them; a scalar of type float64.
        is_counted: whether this worker has any; a boolean scalar.
        count: the number of this worker's examples; a scalar of type int64.
        local: the number that it computes on, including a stand-in; a scalar of type int64.
        first: the number of examples of the preceding workers, a scalar of type int64; None where it must be exchanged.
        unchecked: `count` without the check that other sources of the batch have its length, which reads them.
    """

    source: str
    rows: Tensor
    fraction: Tensor
    is_counted: Tensor
    count: Tensor
    local: Tensor
    first: Tensor | None = None
    unchecked: Tensor = None

    @staticmethod
    def of(source: str, count: Tensor, rows: Tensor, local: Tensor, first: Tensor | None = None) -> BatchWeight:
        """The share of `count` rows of `rows`, where a worker computes on `local` rows; scalars of type int64."""
        share = tf.math.divide_no_nan(tf.cast(count, tf.float64), tf.cast(rows, tf.float64))
        return BatchWeight(source, rows, share, count > 0, count, local, first, count)

    def weigh(self, tensor: Tensor) -> Tensor:
        """A tensor times the share."""
        return tf.math.multiply_no_nan(tensor, tf.cast(self.fraction, tensor.dtype))

    def zero_uncounted(self, tensor: Tensor) -> Tensor:
        """The tensor if this worker has examples, else zeros of its shape."""
        return mask_uncounted(self.is_counted, tensor)

    def counted_rows(self, tensor: Tensor) -> Tensor:
        """A tensor `[n, ...]` if this worker has examples, else none of its rows."""
        rows = tf.shape(tensor)[0]
        return tensor[: tf.where(self.is_counted, rows, tf.zeros_like(rows))]

    def take_length(self, whole: Tensor) -> Tensor:
        """A worker's length of an axis along the batch, from the global one; a negative one (the rest) is unchanged."""
        rows = tf.cast(self.rows, whole.dtype)
        return tf.where(whole < 0, whole, whole // tf.maximum(rows, 1) * tf.cast(self.local, whole.dtype))

    def localize(self, numbers: Tensor, first: Tensor, times: Tensor, counted_by: str) -> Tensor:
        """Converts indices of global entries to per-worker ones; a run checks that they belong to the worker.

        Args:
            numbers: of any shape.
            first: the index of the worker's first example, a scalar of type int64.
            times: the number of entries of an example, a scalar of type int64.
            counted_by: the node that counts the examples.
        """
        local_numbers = numbers - tf.cast(first * times, numbers.dtype)
        last = tf.cast(self.local * times, numbers.dtype) - 1
        nearest = tf.clip_by_value(local_numbers, 0, last)
        is_local = tf.logical_or(tf.reduce_all(tf.equal(local_numbers, nearest)), tf.logical_not(self.is_counted))
        with tf.control_dependencies([tf.raw_ops.Assert(condition=is_local, data=[_OF_OTHERS.format(counted_by)])]):
            return tf.identity(nearest)


def mask_uncounted(is_counted: Tensor, tensor: Tensor, kind: str = "sum") -> Tensor:
    """A worker's part of a reduction, or the neutral element where it is not counted.

    Args:
        is_counted: whether the worker has examples.
        tensor: the part.
        kind: `sum`, `min` or `max`.
    """
    if kind == "sum":
        return tf.where(is_counted, tensor, tf.zeros_like(tensor))
    if tensor.dtype == tf.bool:
        neutral = tf.constant(kind == "min")
    elif tensor.dtype.is_floating:
        neutral = tf.constant(float("inf" if kind == "min" else "-inf"), tensor.dtype)
    else:
        neutral = tf.constant(tensor.dtype.max if kind == "min" else tensor.dtype.min, tensor.dtype)
    return tf.where(is_counted, tensor, neutral)
