"""Half precision on the wire: float32 is rounded right before it is sent, and the rounding error is measured.

parallax/plans/half_precision.py decides on the type on the wire. Received values are cast back at once, so sums,
merges, clips and updates are in float32. Among all-reduces, those of gradients are halved if the op can sum the type;
norms and other sums over rows never are. Gathered bfloat16 travels as int16. Full values that are read for fetches and
checkpoints are never rounded. The error is measured where the worker rounds, in every run, from the first SAMPLED_ROWS
rows of each exchange: |rounded - row| / |row|, in the Euclidean norm. The error of rounding on servers is not measured.
"""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

from parallax.base.types import DType, Operation, Tensor
from parallax.plans.half_precision import rows_travel_as, sums_travel_as

ROWS, GRADIENTS = "rows", "gradients"

SAMPLED_ROWS = 64
"""Rows of each exchange and run: enough for a mean over a few steps, and cheap compared to the exchange."""


@dataclass(frozen=True, slots=True)
class Rounding:
    """A variable `[5]`, float64, in which a worker measures the error of rounding before an exchange.

    Entries: runs, sampled rows other than zero, the sum of their relative errors, the largest of these, the largest
    absolute value of all elements.

    Attributes:
        tensor: reads it.
        initializer: the op that resets it to zero.
        kind: ROWS for pulled rows, GRADIENTS for pushed, gathered or all-reduced ones.
    """

    tensor: str
    initializer: str
    kind: str


class Wire:
    """The element types in which one worker sends.

    Args:
        scope: of the ops that are added.
        dtype: `bfloat16`, `float16`, or None for no rounding.

    Attributes:
        roundings: the measured errors, in the order of construction.
    """

    def __init__(self, scope: str, dtype: str | None) -> None:
        self._scope = scope
        self._dtype = dtype
        self.roundings: list[Rounding] = []

    def rows_type(self, dtype: DType) -> DType:
        """The type on the wire of rows that are moved and not reduced."""
        return tf.dtypes.as_dtype(rows_travel_as(dtype.name, self._dtype))

    def round_rows(self, rows: Tensor) -> Tensor:
        """Rows in their type on the wire, without measurement."""
        return tf.cast(rows, self.rows_type(rows.dtype))

    def out(self, exact: Tensor, kind: str) -> Tensor:
        """Rows, or a gradient of any shape, in the type on the wire; the rounding error is measured."""
        sent = self.round_rows(exact)
        if sent is exact:
            return exact
        with tf.control_dependencies([self._measure(exact, sent, kind)]):
            return tf.identity(sent)

    def halves_sums_of(self, dtype: DType) -> bool:
        """Whether gradients of a type are summed in half precision on the wire."""
        return self._dtype is not None and sums_travel_as(dtype.name, self._dtype) == self._dtype != dtype.name

    def _measure(self, exact: Tensor, sent: Tensor, kind: str) -> Operation:
        """The op that adds one run to the measurement."""
        graph, name = tf.compat.v1.get_default_graph(), f"{self._scope}/rounding_{len(self.roundings)}"
        with tf.name_scope(f"{name}/"), tf.init_scope(), graph.as_default():
            handle = tf.raw_ops.VarHandleOp(dtype=tf.float64, shape=[5], shared_name=name, name="handle")
            start = tf.raw_ops.AssignVariableOp(resource=handle, value=tf.zeros([5], tf.float64))
            read = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float64)
        self.roundings.append(Rounding(str(read.name), str(start.name), kind))
        with tf.name_scope(f"{name}/"):
            rows, rounded = _sample(exact), tf.cast(_sample(sent), exact.dtype)
            norms = tf.norm(rows, axis=1)
            errors = tf.cast(tf.math.divide_no_nan(tf.norm(rounded - rows, axis=1), norms), tf.float64)
            none = tf.zeros([1], tf.float64)  # without rows there is no maximum
            largest = tf.reduce_max(tf.concat([errors, none], 0))
            magnitude = tf.reduce_max(tf.concat([tf.reshape(tf.abs(exact), [-1]), tf.zeros([1], exact.dtype)], 0))
            counted = tf.math.count_nonzero(norms, dtype=tf.int64)
            before = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float64)
            added = tf.stack([tf.constant(1.0, tf.float64), tf.cast(counted, tf.float64), tf.reduce_sum(errors)])
            most = tf.maximum(before[3:], tf.stack([largest, tf.cast(magnitude, tf.float64)]))
            return tf.raw_ops.AssignVariableOp(resource=handle, value=tf.concat([before[:3] + added, most], 0))


def _sample(tensor: Tensor) -> Tensor:
    """The first rows, `[n, width]`; a tensor without rows counts as one."""
    width = tensor.shape[-1] if tensor.shape.rank and tensor.shape.rank > 1 else None
    return tf.reshape(tensor, [-1, width])[:SAMPLED_ROWS] if width else tf.reshape(tensor, [1, -1])
