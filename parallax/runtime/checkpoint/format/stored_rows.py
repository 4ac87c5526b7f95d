"""Reads variables from an open checkpoint and copies them to another one, a chunk of rows at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import tensorflow as tf

from parallax.base.errors import CheckpointError
from parallax.base.types import Array
from parallax.runtime.checkpoint.format.bundle import Bundle, Tensor
from parallax.runtime.checkpoint.format.chain import Chain
from parallax.runtime.checkpoint.format.stored_tensors import CheckpointEntry
from parallax.runtime.checkpoint.format.writer import Writer

Readable = Bundle | Chain
"""An open checkpoint."""
_MOST_NAMED = 5  # variables that a message lists


def ranges_of(bundle: Readable, stored: CheckpointEntry, chunk_bytes: int) -> list[tuple[int, int]]:
    """The ranges of rows in which a variable is read, each from one stored piece."""
    if not stored.has_rows:
        return [(0, 1)]
    return bundle.ranges(stored.key, stored.offset[0], stored.rows, stored.row_bytes, chunk_bytes)


def read_rows(bundle: Readable, stored: CheckpointEntry, first: int, count: int) -> Array:
    """Reads rows `[count, ...]` of a variable from row `first` on; the full value if it has no rows.

    Raises:
        DamagedCheckpoint: when bytes of them fail their checksum.
    """
    shape = bundle.tensors[stored.key].shape
    return bundle.read(stored.key, *(((0,) * len(shape), shape) if stored.shape is None else stored.box(first, count)))


def stored_parts(tensor: Tensor) -> list[CheckpointEntry]:
    """A checkpoint's tensor as an entry, whatever graph it belongs to; its parts, if they do not cover it."""
    dtype, whole = tf.as_dtype(tensor.dtype), tensor.shape
    boxes = [((0,) * len(whole), whole)] if tensor.is_whole else [(piece.start, piece.shape) for piece in tensor.pieces]
    return [
        CheckpointEntry(tensor.key, tensor.key, tensor.dtype, dtype.size, shape, whole, start, not tensor.is_whole)
        for start, shape in boxes
    ]


def copy(bundle: Readable, variables: Sequence[CheckpointEntry], writer: Writer, chunk_bytes: int) -> None:
    """Copies variables into a checkpoint that is being written.

    Raises:
        DamagedCheckpoint: when bytes of one fail their checksum.
    """
    for stored in variables:
        for first, count, rows in _pieces(bundle, stored, chunk_bytes):
            writer.add(stored.key, stored.slice_spec(first, count), stored.dtype, rows)


def _pieces(bundle: Readable, stored: CheckpointEntry, chunk_bytes: int) -> Iterator[tuple[int, int, Array]]:
    """Yields (first row, number, rows) for all chunks of a variable; one piece if it is no larger than a chunk."""
    if stored.has_rows and stored.rows * stored.row_bytes <= chunk_bytes:
        yield 0, stored.rows, read_rows(bundle, stored, 0, stored.rows)
        return
    for first, count in ranges_of(bundle, stored, chunk_bytes):
        yield first, count, read_rows(bundle, stored, first, count)


def check_fits(bundle: Readable, variables: Sequence[CheckpointEntry], remedy: str) -> None:
    """Requires every variable of a graph to be in its checkpoint, with its shape and type.

    Raises:
        CheckpointError: names the variables, and compares graph and checkpoint.
    """
    wrong = []
    for one in variables:
        stored = bundle.tensors.get(one.key)
        if stored is None:
            wrong.append(f"{one.key} {_shape(one.whole_shape)} is missing from it")
        elif one.whole_shape is not None and stored.shape != one.whole_shape:
            wrong.append(f"{one.key} is {_shape(one.whole_shape)} in the graph and {_shape(stored.shape)} in it")
        elif stored.dtype != one.dtype:
            wrong.append(f"{one.key} is {one.dtype} in the graph and {stored.dtype} in it")
    if wrong:
        more = f"; and {len(wrong) - _MOST_NAMED} more" if len(wrong) > _MOST_NAMED else ""
        raise CheckpointError(
            f"The checkpoint {bundle.prefix} does not match the graph: {'; '.join(wrong[:_MOST_NAMED])}{more}. {remedy}"
        )


def _shape(shape: tuple[int, ...] | None) -> str:
    return str(list(shape)) if shape is not None else "of open shape"
