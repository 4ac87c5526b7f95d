"""Ops along one axis of a tensor."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from parallax.base.types import Tensor


def add_to_numbers(numbers: Tensor, first: Tensor, columns: int = 1) -> Tensor:
    """Adds an offset to numbers `[n]`, or to the first `columns` numbers along the last axis of indices `[..., k]`."""
    if numbers.shape.rank != 1:
        others = tf.shape(numbers, out_type=tf.int64)[-1:] - columns
        first = tf.concat([tf.fill([columns], tf.cast(first, tf.int64)), tf.zeros(others, tf.int64)], 0)
    return numbers + tf.cast(first, numbers.dtype)


def with_axis_back(tensor: Tensor, axis: int) -> Tensor:
    """Moves the first axis back to its original position."""
    return transpose(tensor, axis, [*range(1, axis + 1), 0])


def transpose(tensor: Tensor, axis: int, order: Sequence[int]) -> Tensor:
    """Permutes the axes of a tensor up to a given one; its rank may be unknown."""
    if axis == 0:
        return tensor
    rank = tensor.shape.rank
    if rank is not None:
        return tf.transpose(tensor, [*order, *range(axis + 1, rank)])
    return tf.transpose(tensor, tf.concat([order, tf.range(axis + 1, tf.rank(tensor))], 0))


def slice_axis(tensor: Tensor, axis: int, start: Tensor, length: Tensor) -> Tensor:
    """A slice along one axis."""
    is_axis = tf.equal(tf.range(tf.rank(tensor)), axis)  # the rank may be unknown
    begin = tf.where(is_axis, start, tf.constant(0, tf.int64))
    return tf.slice(tensor, begin, tf.where(is_axis, length, tf.constant(-1, tf.int64)))


def with_axis_first(tensor: Tensor, axis: int) -> Tensor:
    """Moves an axis to the front."""
    return transpose(tensor, axis, [axis, *range(axis)])
