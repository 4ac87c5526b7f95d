"""Ops that compute a 64-bit fingerprint of each of a worker's variables, and read its value where fingerprints differ.

TensorFlow's Fingerprint reads a value once, at memory speed, and copies nothing. TensorFlow copies a variable that is
written by row for every reader; a large one is therefore read in pieces, one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from parallax.base.types import DType, Handle, Operation, Tensor
from parallax.runtime.checkpoint.format.stored_tensors import CHUNK_BYTES, chunks
from parallax.runtime.checkpoint.rows.row_ops import up_to_date
from parallax.runtime.guard.watched_variables import WatchedVariable, size_bytes

_SCOPE = "parallax/guard/"


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Tensors of one variable in a worker's graph.

    Attributes:
        is_there: scalar bool, whether the variable has a value.
        digest: `[1]` int64, farmhash64 of the value's bytes.
        pieces: its value, in pieces by row.
        has_nan: scalar bool, whether it contains a NaN; None if its type has no NaN.
    """

    is_there: Tensor
    digest: Tensor
    pieces: tuple[Tensor, ...]
    has_nan: Tensor | None = None


def fingerprint(
    variable: Operation, one: WatchedVariable, lazy: Sequence[tuple[str, ...]] = (), chunk_bytes: int = CHUNK_BYTES
) -> Fingerprint:
    """Adds the fingerprint ops of a variable to the default graph.

    Args:
        variable: the op that holds it.
        one: its description.
        lazy: the ops of each table whose rows must be brought up to date before they are read.
        chunk_bytes: the piece size for variables that are written by row.
    """
    with tf.name_scope(_SCOPE), tf.control_dependencies(up_to_date(variable.name, lazy)):
        handle = variable.outputs[0]
        if handle.dtype != tf.resource:
            is_there = tf.raw_ops.IsVariableInitialized(ref=handle)
            value = tf.identity(handle)
            return Fingerprint(is_there, _digest(value), (value,), _has_nan([value]))
        is_there = tf.raw_ops.VarIsInitializedOp(resource=handle)
        dtype = tf.as_dtype(one.dtype)
        if one.shape and one.by_row and size_bytes(one) > chunk_bytes:
            pieces, digests = _by_row(handle, dtype, one, chunk_bytes)
            return Fingerprint(is_there, _digest(tf.concat(digests, 0)), pieces, _has_nan(pieces))
        value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
        return Fingerprint(is_there, _digest(value), (value,), _has_nan([value]))


def _digest(value: Tensor) -> Tensor:
    """`[1]` int64 of any value; the op exists for CPUs only."""
    with tf.device("/device:CPU:0"):
        made = tf.raw_ops.Fingerprint(data=tf.reshape(value, [1, -1]), method="farmhash64")
        return tf.bitcast(made, tf.int64)


def _has_nan(pieces: Sequence[Tensor]) -> Tensor | None:
    if not pieces[0].dtype.is_floating:
        return None
    has_nan_by_piece = [tf.reduce_any(tf.math.is_nan(piece)) for piece in pieces]
    return has_nan_by_piece[0] if len(has_nan_by_piece) == 1 else tf.reduce_any(has_nan_by_piece)


def _by_row(
    handle: Handle, dtype: DType, one: WatchedVariable, chunk_bytes: int
) -> tuple[tuple[Tensor, ...], list[Tensor]]:
    """Pieces of rows, and the digest of each; a piece is read when the previous one is finished."""
    rows = (one.shape or (1,))[0]
    pieces: list[Tensor] = []
    digests: list[Tensor] = []
    for first, count in chunks(rows, size_bytes(one) // max(1, rows), chunk_bytes):
        with tf.control_dependencies(digests[-1:]):
            places = tf.range(tf.constant(first), first + count)
            pieces.append(tf.raw_ops.ResourceGather(resource=handle, indices=places, dtype=dtype))
            digests.append(_digest(pieces[-1]))
    return tuple(pieces), digests
