"""Finds how the entries of a constant for a fixed batch follow from the batch length, to compute them for another one.

Equal entries (zeros, a fill, also of one over the length), rows that count examples (`np.arange(128)`), each of these
in turn (labels of real and fake examples), and diagonals (`np.eye(128)`, a mask of the other views of each example)
have a value for every length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from parallax.analysis.reading.batches.batch_numbers import IntegerClassifier, is_longer
from parallax.base.types import Array

_LEAST = 3
"""Any two rows differ by a step, and any 2 x 2 matrix of two values may be of diagonals."""
_SHORT = 3
"""Decimals of a weight or a label. A number with no more of them need not be computed from the batch length."""

_NONE = 1e-4
"""A remainder of rounding."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Entries: `value + per_length / length`.

    Attributes:
        value: an array, or a scalar.
        per_length: a scalar.
    """

    value: Array
    per_length: float = 0.0

    def build(self, length: tf.Tensor) -> tf.Tensor:
        """The entries for a batch length, which is an int32 scalar."""
        value = tf.constant(self.value)
        return value + self.per_length / tf.cast(length, value.dtype) if self.per_length else value


@dataclass(frozen=True, slots=True)
class CountedRows:
    """Rows along an axis, as many as the batch has or a multiple: row i is `first + (i + offset) * step`.

    Attributes:
        first: row 0 without its offset, with a length of 1 along the axis.
        factor: ratio of the number of rows to the batch length.
        step: difference of adjacent rows; 0 for equal rows.
        offset: of the rows' numbers, in batch lengths.
    """

    first: Entry
    factor: int
    step: int = 0
    offset: int = 0

    def build(self, length: tf.Tensor, axis: int) -> tf.Tensor:
        """The rows for a batch length, which is an int32 scalar."""
        first, count = self.first.build(length), _multiply(length, self.factor)
        if not self.step:
            shape = self.first.value.shape
            return tf.broadcast_to(first, tf.stack([count if place == axis else n for place, n in enumerate(shape)]))
        begin = _multiply(length, self.offset)
        numbers = _multiply(tf.range(begin, begin + count) if self.offset else tf.range(count), self.step)
        if first.shape.rank > 1:
            numbers = tf.reshape(numbers, [-1 if place == axis else 1 for place in range(first.shape.rank)])
        numbers = tf.cast(numbers, first.dtype)
        return numbers + first if self.first.value.any() or self.first.value.size > 1 else numbers


@dataclass(frozen=True, slots=True)
class ConsecutiveRows:
    """Parts along an axis, each of counted rows, repeated along other axes.

    Attributes:
        parts: with a length of 1 along the other axes.
        axis: along which they lie.
        repeats: other axis -> ratio of its length to the batch length.
    """

    parts: tuple[CountedRows, ...]
    axis: int
    repeats: Mapping[int, int]

    def build(self, length: tf.Tensor) -> tf.Tensor:
        """The tensor for a batch length, which is an int32 scalar."""
        parts = [part.build(length, self.axis) for part in self.parts]
        rows = tf.concat(parts, self.axis) if len(parts) > 1 else parts[0]
        if not self.repeats:
            return rows
        factors = {**self.repeats, self.axis: sum(part.factor for part in self.parts)}
        row = self.parts[0].first.value.shape
        dims = [_multiply(length, factors[place]) if place in factors else n for place, n in enumerate(row)]
        return tf.broadcast_to(rows, tf.stack(dims))


@dataclass(frozen=True, slots=True)
class Diagonals:
    """A matrix of one value, but for another one on diagonals that are batch lengths apart.

    Attributes:
        value: on the diagonals.
        others: off them.
        factors: ratios of the matrix's lengths to the batch length.
        offsets: column minus row of each diagonal, in batch lengths.
    """

    value: Entry
    others: Entry
    factors: tuple[int, int]
    offsets: tuple[int, ...]

    def build(self, length: tf.Tensor) -> tf.Tensor:
        """The tensor for a batch length, which is an int32 scalar."""
        rows, columns = (tf.range(_multiply(length, factor)) for factor in self.factors)
        distances = columns[None] - rows[:, None]
        is_on = tf.reduce_any([tf.equal(distances, length * offset) for offset in self.offsets], 0)
        return tf.where(is_on, self.value.build(length), self.others.build(length))


Pattern = ConsecutiveRows | Diagonals


def find_pattern(value: Array, axes: Sequence[int], length: int) -> Pattern | None:
    """The pattern of a constant along axes whose lengths are multiples of the batch length; None if it has none."""
    if any(value.shape[axis] % length for axis in axes):
        return None
    varying = [axis for axis in axes if not np.all(value == np.take(value, [0], axis))]
    if len(varying) > 1:
        return _find_diagonals(value, length)
    axis = varying[0] if varying else axes[0]
    repeats = {other: value.shape[other] // length for other in axes if other != axis}
    row = value
    for other in repeats:
        row = np.take(row, [0], other)
    factor = value.shape[axis] // length
    parts = [_find_rows(part, axis, length) for part in np.split(row, factor, axis)] if varying else []
    if not varying:
        parts = [_make_rows(np.take(row, [0], axis), factor, length)]
    counted = tuple(part for part in parts if part is not None)
    found = ConsecutiveRows(counted, axis, repeats) if len(counted) == len(parts) else None
    return found or _find_diagonals(value, length)


def find_constant_axes(value: Array, tensor: str, length: int, numbers: IntegerClassifier) -> list[int]:
    """The axes of a constant that must be the batch's: one, or all of equal entries or of a matrix of diagonals."""
    axes = numbers.find_axes_of(tensor, value.shape) or []
    return axes if len(axes) == 1 or (axes and find_pattern(value, axes, length) is not None) else []


def _find_diagonals(value: Array, length: int) -> Diagonals | None:
    """The diagonals of a matrix, both of whose lengths are multiples of the batch length; None if it has none."""
    if value.ndim != 2 or length < _LEAST or any(n % length for n in value.shape):
        return None
    rows, columns = np.nonzero(value != value[0, 1])
    on_diagonals = value[rows, columns]
    if not rows.size or np.any((columns - rows) % length) or np.any(on_diagonals != on_diagonals[0]):
        return None
    offsets = tuple(int(offset) // length for offset in np.unique(columns - rows))
    factors = value.shape[0] // length, value.shape[1] // length
    count = sum(int(np.eye(value.shape[0], value.shape[1], offset * length).sum()) for offset in offsets)
    on, off = (find_entry(np.asarray(one), length) for one in (on_diagonals[0], value[0, 1]))
    return Diagonals(on, off, factors, offsets) if on is not None and off is not None and count == rows.size else None


def _find_rows(value: Array, axis: int, length: int) -> CountedRows | None:
    """The rows of a constant with as many rows as the batch has examples."""
    first = np.take(value, [0], axis)
    if np.all(value == first):
        return _make_rows(first, 1, length)
    if value.dtype.kind not in "if" or length < _LEAST:
        return None
    steps = np.diff(value, axis=axis)
    step = int(steps.flat[0])
    if step <= 0 or np.any(steps != step):
        return None
    offset = int(first.flat[0]) // (step * length)
    first = first - np.asarray(offset * step * length, value.dtype)
    is_short = bool(np.all((first >= 0) & (first < max(step, 2))))  # others may be computed from the batch length
    return CountedRows(Entry(first), 1, step, offset) if is_short else None


def _make_rows(row: Array, factor: int, length: int) -> CountedRows | None:
    """Equal rows."""
    entry = find_entry(row, length)
    return None if entry is None else CountedRows(entry, factor)


def find_entry(value: Array, length: int) -> Entry | None:
    """Equal entries, also where they were computed from the batch length; None where they may have been.

    Entries that differ are no computation from the length.
    """
    number = float(value.flat[0]) if value.dtype.kind == "f" and value.size and np.all(value == value.flat[0]) else 0.0
    if not np.isfinite(number) or abs(number) in (0.0, 1.0):
        return Entry(value)
    base = np.round(number)
    per_length, is_short = (number - base) * length, np.isclose(number, np.round(number, _SHORT), rtol=1e-6)
    if abs(per_length) > _NONE and np.isclose(per_length, np.round(per_length), rtol=1e-5):
        if not is_short:
            return Entry(np.full_like(value, base), float(np.round(per_length)))
        return None if abs(np.round(per_length)) == 1 else Entry(value)
    if not is_short and is_longer(number - base, per_length):
        return Entry(np.full_like(value, base), per_length)
    may_be_derived = np.isclose(abs(number), (length, 1 / (length - 1), 1 / (length + 1)), rtol=1e-6).any()
    return None if may_be_derived else Entry(value)


def _multiply(tensor: tf.Tensor, factor: int) -> tf.Tensor:
    return tensor if factor == 1 else tensor * factor
