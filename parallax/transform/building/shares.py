"""Each worker's share of the examples of a step, where workers' batches may be of unequal length.

Shares add up to 1 over the workers. A product with a share of 0 is 0, whatever the other factor: a worker without
examples may have gradients that are no numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

from parallax.types import DType, Tensor


@dataclass(frozen=True, slots=True)
class BatchShare:
    """Of one step's batch.

    Attributes:
        rows: how many examples all workers have; a scalar of type int64.
        own: what part of them this worker has; a scalar of type float64.
    """

    rows: Tensor
    own: Tensor

    @staticmethod
    def of(own: Tensor, rows: Tensor) -> BatchShare:
        """The share of so many rows of so many, scalars of type int64."""
        return BatchShare(rows, tf.math.divide_no_nan(tf.cast(own, tf.float64), tf.cast(rows, tf.float64)))

    def times(self, factor: float, dtype: DType) -> Tensor:
        """The share, times a number, as a scalar of some type."""
        share = self.own if factor == 1.0 else self.own * tf.constant(factor, tf.float64)
        return tf.cast(share, dtype)

    def weigh(self, tensor: Tensor, factor: float = 1.0) -> Tensor:
        """A tensor times the share, and times a number."""
        return tf.math.multiply_no_nan(tensor, self.times(factor, tensor.dtype))

    def part_of(self, total: Tensor, workers: int) -> Tensor:
        """The share's part of a positive scalar; a W-th of it where this worker has none, so that it can divide."""
        equal = tf.constant(1.0 / workers, tf.float64)
        return total * tf.cast(tf.where(self.own > 0, self.own, equal), total.dtype)
