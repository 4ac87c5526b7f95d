"""Each worker's share of the examples of a step, where per-worker batches may have unequal lengths.

Shares add up to 1 over the workers. A worker without examples computes on a stand-in (batches/shares.py), which
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
class BatchShare:
    """Of one step's batch.

    Attributes:
        source: the tensor of the user's graph whose first dimension the batch is.
        rows: how many examples all workers have; a scalar of type int64.
        own: what part of them this worker has; a scalar of type float64.
        is_counted: whether this worker has any; a boolean scalar.
        count: how many examples this worker has; a scalar of type int64.
        local: how many it computes on, a stand-in too; a scalar of type int64.
        first: how many the workers before this one have, a scalar of type int64; None where they must be asked.
    """

    source: str
    rows: Tensor
    own: Tensor
    is_counted: Tensor
    count: Tensor
    local: Tensor
    first: Tensor | None = None

    @staticmethod
    def of(source: str, own: Tensor, rows: Tensor, local: Tensor, first: Tensor | None = None) -> BatchShare:
        """The share of so many rows of so many, where a worker computes on so many; scalars of type int64."""
        share = tf.math.divide_no_nan(tf.cast(own, tf.float64), tf.cast(rows, tf.float64))
        return BatchShare(source, rows, share, own > 0, own, local, first)

    def weigh(self, tensor: Tensor) -> Tensor:
        """A tensor times the share."""
        return tf.math.multiply_no_nan(tensor, tf.cast(self.own, tensor.dtype))

    def zero_uncounted(self, tensor: Tensor) -> Tensor:
        """A tensor where this worker has examples, and zeros of its shape elsewhere."""
        return mask_uncounted(self.is_counted, tensor)

    def counted_rows(self, tensor: Tensor) -> Tensor:
        """A tensor `[n, ...]` where this worker has examples, and none of its rows elsewhere."""
        rows = tf.shape(tensor)[0]
        return tensor[: tf.where(self.is_counted, rows, tf.zeros_like(rows))]

    def take_length(self, whole: Tensor) -> Tensor:
        """Of a length of an axis along the batch, the worker's; a negative one, for what is left, stays so."""
        rows = tf.cast(self.rows, whole.dtype)
        return tf.where(whole < 0, whole, whole // tf.maximum(rows, 1) * tf.cast(self.local, whole.dtype))

    def localize(self, numbers: Tensor, first: Tensor, times: Tensor, counted_by: str) -> Tensor:
        """Numbers of entries of the global batch -> of the worker's; a run says where one is another worker's.

        Args:
            numbers: of any shape.
            first: the number of the worker's first example, a scalar of type int64.
            times: how many entries an example has.
            counted_by: the node that counts the examples.
        """
        times = tf.cast(times, tf.int64)
        found = numbers - tf.cast(first * times, numbers.dtype)
        last = tf.cast(self.local * times, numbers.dtype) - 1
        nearest = tf.clip_by_value(found, 0, last)
        is_own = tf.logical_or(tf.reduce_all(tf.equal(found, nearest)), tf.logical_not(self.is_counted))
        with tf.control_dependencies([tf.raw_ops.Assert(condition=is_own, data=[_OF_OTHERS.format(counted_by)])]):
            return tf.identity(nearest)


def mask_uncounted(is_counted: Tensor, tensor: Tensor, kind: str = "sum") -> Tensor:
    """A worker's part of what workers reduce; where it is not counted, what leaves the others' result as it is.

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
