"""Maps the global variables of the user's graph to tensors in a checkpoint, under the keys that tf.train.Saver uses.

A part of a partitioned variable is a slice of its logical variable. A range of rows of any variable is a slice too, so
one variable can be written in several pieces.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import tensorflow as tf

from parallax.base.types import Graph, Variable

CHUNK_BYTES = 16 * 2**20
"""The maximum that is written, read or sent at once; rows are never split. Worker 0 needs about five times as much:
rows as they arrive and in order, those that wait for a file, and TensorFlow's copies.
"""

OWN_KEYS = "parallax/"
"""Prefix of checkpoint keys that only this project reads."""


@dataclass(frozen=True, slots=True)
class CheckpointEntry:
    """One TensorFlow variable and its place in the checkpoint.

    Attributes:
        op: the variable op.
        key: name in the checkpoint; the parts of a partitioned variable share it.
        dtype: TensorFlow's name of the element type.
        element_bytes: bytes per element.
        shape: its shape; None if the graph does not fix it.
        whole_shape: shape of the logical variable; None if the graph does not fix it.
        offset: start of this part in the logical variable, one number per dimension.
        is_part: whether Saver stores it as a slice even when it is written in one piece.
    """

    op: str
    key: str
    dtype: str
    element_bytes: int
    shape: tuple[int, ...] | None
    whole_shape: tuple[int, ...] | None
    offset: tuple[int, ...]
    is_part: bool

    @property
    def has_rows(self) -> bool:
        """Whether ranges of rows can be read: not for scalars, nor for strings, whose bytes are unknown."""
        return bool(self.shape) and self.dtype != "string"

    @property
    def rows(self) -> int:
        """Length of the first dimension; 1 if it is not read by rows."""
        return self.shape[0] if self.has_rows and self.shape else 1

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return math.prod(self.shape[1:]) * self.element_bytes if self.shape else self.element_bytes

    def box(self, first: int, count: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(start, shape) in the logical variable of `count` rows from row `first` of this part."""
        if not self.shape:
            return (), ()
        if not self.has_rows:
            return self.offset, self.shape
        return (self.offset[0] + first, *self.offset[1:]), (count, *self.shape[1:])

    def slice_spec(self, first: int, count: int) -> str:
        """The slice specification of those rows for SaveV2 and RestoreV2; empty for a full unpartitioned variable."""
        if not self.shape or self.whole_shape is None or (not self.is_part and count == self.rows):
            return ""
        return slice_text(self.whole_shape, *self.box(first, count))

    def __str__(self) -> str:
        return self.key if not self.is_part else f"{self.key} (part {self.op})"


def slice_text(whole_shape: tuple[int, ...], start: tuple[int, ...], shape: tuple[int, ...]) -> str:
    """TensorFlow's text for a slice: `11 4 3,2:0,4` is two rows from row 3 of a variable of shape [11, 4]."""
    extents = ":".join(f"{s},{n}" for s, n in zip(start, shape, strict=True))
    return " ".join([*(str(d) for d in whole_shape), extents])


def groups(bytes_by_name: Mapping[str, int], most: int = CHUNK_BYTES) -> Iterator[list[str]]:
    """Groups names in order, so that each group has at most `most` bytes, or one name that has more."""
    group: list[str] = []
    size = 0
    for name, of_one in bytes_by_name.items():
        if group and size + of_one > most:
            yield group
            group, size = [], 0
        group.append(name)
        size += of_one
    if group:
        yield group


def chunks(rows: int, row_bytes: int, chunk_bytes: int) -> list[tuple[int, int]]:
    """Splits rows into (first row, number of rows) of at most `chunk_bytes`, or of one row if a row has more."""
    step = max(1, chunk_bytes // max(1, row_bytes))
    return [(first, min(step, rows - first)) for first in range(0, rows, step)] or [(0, 0)]


def stored_variables(graph: Graph) -> tuple[CheckpointEntry, ...]:
    """The global variables of a graph, as `tf.train.Saver(tf.global_variables())` names them; sorted by key and place.

    Args:
        graph: the user's graph.
    """
    entry_by_key: dict[str, CheckpointEntry] = {}
    for variable in graph.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES):
        op = variable_op(variable)
        dtype = variable.dtype.base_dtype
        shape = tuple(variable.shape.as_list()) if variable.shape.is_fully_defined() else None
        info = getattr(variable, "_save_slice_info", None)
        whole = tuple(int(d) for d in info.full_shape) if info is not None else shape
        offset = tuple(int(o) for o in info.var_offset) if info is not None else (0,) * len(shape or ())
        key = str(info.full_name) if info is not None else op
        entry_by_key[op] = CheckpointEntry(op, key, dtype.name, int(dtype.size), shape, whole, offset, info is not None)
    return tuple(sorted(entry_by_key.values(), key=lambda s: (s.key, s.offset, s.op)))


def variable_op(variable: Variable) -> str:
    """The op that holds a variable."""
    handle = getattr(variable, "handle", None)
    return str(handle.op.name if handle is not None else variable.op.name)
