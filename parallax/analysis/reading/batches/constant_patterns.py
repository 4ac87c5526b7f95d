"""Finds how the entries of a constant for a fixed batch follow from the batch length, to compute them for another one.

Equal rows (zeros, a fill), rows that count examples (`np.arange(128)`), each of these in turn (labels of real and fake
examples), and diagonals (`np.eye(128)`, a mask of the other views of each example) have a value for every length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from parallax.analysis.reading.batches.batch_numbers import IntegerClassifier
from parallax.base.types import Array

_LEAST = 3
"""Any two rows differ by a step, and any 2 x 2 matrix of two values may be of diagonals."""


@dataclass(frozen=True, slots=True)
class CountedRows:
    """Rows along an axis, as many as the batch has or a multiple: row i is `first + (i + offset) * step`.

    Attributes:
        first: row 0 without its offset, with a length of 1 along the axis.
        factor: ratio of the number of rows to the batch length.
        step: difference of adjacent rows; 0 for equal rows.
        offset: of the rows' numbers, in batch lengths.
    """

    first: Array
    factor: int
    step: int = 0
    offset: int = 0

    def build(self, length: tf.Tensor, axis: int) -> tf.Tensor:
        """The tensor for a batch length, which is an int32 scalar."""
        count = _multiply(length, self.factor)
        dims = [count if place == axis else n for place, n in enumerate(self.first.shape)]
        if not self.step:
            return tf.broadcast_to(tf.constant(self.first), tf.stack(dims))
        begin = _multiply(length, self.offset)
        numbers = _multiply(tf.range(begin, begin + count) if self.offset else tf.range(count), self.step)
        along = [-1 if place == axis else 1 for place in range(len(dims))]
        numbers = tf.cast(tf.reshape(numbers, along) if len(dims) > 1 else numbers, self.first.dtype)
        return numbers + tf.constant(self.first) if self.first.any() or self.first.size > 1 else numbers


@dataclass(frozen=True, slots=True)
class ConsecutiveRows:
    """Parts along an axis, each of counted rows."""

    parts: tuple[CountedRows, ...]
    axis: int

    def build(self, length: tf.Tensor) -> tf.Tensor:
        """The tensor for a batch length, which is an int32 scalar."""
        parts = [part.build(length, self.axis) for part in self.parts]
        return tf.concat(parts, self.axis) if len(parts) > 1 else parts[0]


@dataclass(frozen=True, slots=True)
class Diagonals:
    """A matrix of one value, but for another one on diagonals that are batch lengths apart.

    Attributes:
        value: on the diagonals.
        others: off them.
        factors: ratios of the matrix's lengths to the batch length.
        offsets: column minus row of each diagonal, in batch lengths.
    """

    value: Array
    others: Array
    factors: tuple[int, int]
    offsets: tuple[int, ...]

    def build(self, length: tf.Tensor) -> tf.Tensor:
        """The tensor for a batch length, which is an int32 scalar."""
        rows, columns = (tf.range(_multiply(length, factor)) for factor in self.factors)
        distances = columns[None] - rows[:, None]
        is_on = tf.reduce_any([tf.equal(distances, length * offset) for offset in self.offsets], 0)
        return tf.where(is_on, tf.constant(self.value), tf.constant(self.others))


Pattern = ConsecutiveRows | Diagonals


def find_pattern(value: Array, axis: int, length: int) -> Pattern | None:
    """The pattern of a constant along an axis whose length is a multiple of the batch length; None if it has none."""
    if value.shape[axis] % length:
        return None
    if _has_equal_rows(value, axis):
        rows = CountedRows(np.take(value, [0], axis), value.shape[axis] // length)
        return ConsecutiveRows((rows,), axis)
    if length < _LEAST:
        return None
    parts = [_find_rows(part, axis, length) for part in np.split(value, value.shape[axis] // length, axis)]
    counted = tuple(part for part in parts if part is not None)
    return ConsecutiveRows(counted, axis) if len(counted) == len(parts) else find_diagonals(value, length)


def find_diagonals(value: Array, length: int) -> Diagonals | None:
    """The diagonals of a matrix, both of whose lengths are multiples of the batch length; None if it has none."""
    if value.ndim != 2 or length < _LEAST or any(n % length for n in value.shape):
        return None
    others = value[0, 1]
    rows, columns = np.nonzero(value != others)
    on_diagonals = value[rows, columns]
    if not rows.size or np.any((columns - rows) % length) or np.any(on_diagonals != on_diagonals[0]):
        return None
    offsets = tuple(int(offset) // length for offset in np.unique(columns - rows))
    factors = value.shape[0] // length, value.shape[1] // length
    is_full = _count_entries(offsets, value.shape, length) == rows.size
    return Diagonals(on_diagonals[0], others, factors, offsets) if is_full else None


def find_constant_axis(value: Array, length: int, numbers: IntegerClassifier) -> int | None:
    """The axis of a constant that must be the batch's; the first one of a matrix of diagonals, where both axes are."""
    is_certain = value.ndim == 2 and all(numbers.find_factor(n) for n in value.shape)
    if is_certain and find_diagonals(value, length) is not None:
        return 0
    return numbers.find_axis(np.asarray(value.shape))


def _multiply(tensor: tf.Tensor, factor: int) -> tf.Tensor:
    return tensor if factor == 1 else tensor * factor


def _has_equal_rows(value: Array, axis: int) -> bool:
    return bool(np.all(value == np.take(value, [0], axis)))


def _count_entries(offsets: Sequence[int], shape: Sequence[int], length: int) -> int:
    """Number of entries of a matrix's diagonals."""
    return sum(int(np.eye(shape[0], shape[1], offset * length).sum()) for offset in offsets)


def _find_rows(value: Array, axis: int, length: int) -> CountedRows | None:
    """The rows of a constant with as many rows as the batch has examples."""
    first = np.take(value, [0], axis)
    if _has_equal_rows(value, axis):
        return CountedRows(first, 1)
    if value.dtype.kind not in "if":
        return None
    steps = np.diff(value, axis=axis)
    step = int(steps.flat[0])
    if step <= 0 or np.any(steps != step):
        return None
    offset = int(first.flat[0]) // (step * length)
    first = first - np.asarray(offset * step * length, value.dtype)
    is_short = bool(np.all((first >= 0) & (first < max(step, 2))))  # others may be computed from the batch length
    return CountedRows(first, 1, step, offset) if is_short else None
