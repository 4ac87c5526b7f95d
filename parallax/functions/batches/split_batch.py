"""Splits a global batch into the workers' shares.

Concatenated, the shares are the batch of one process. A batch with fewer rows than workers leaves some workers without
examples: these compute on a stand-in, a row of another worker, which contributes nothing
(transform/building/batch_weights.py). So no op runs on an empty batch, which many kernels reject.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from parallax.base.errors import SessionError
from parallax.base.types import Array, DType, Nest, RaggedTensor, TensorLike
from parallax.functions.batches.numbered_rows import NumberedRows
from parallax.graph.batches import locate_part

_UNEQUAL = (
    "The parts of this batch have different numbers of rows: {lengths}. Each worker gets its rows of every part, so "
    "this must be known when the step is traced: for parallax.function and train_on_batch by the first call; for a "
    "dataset by tf.data.Dataset.zip of batched ones, or by batches of fixed lengths (drop_remainder=True)."
)

_NO_ROW = (
    "Each island must have an example of every batch, and a batch of {rows} was given for {islands} islands. Take "
    "larger batches, or leave out a last one that is shorter (tf.data: drop_remainder=True)."
)


@dataclass(frozen=True, slots=True)
class BatchPart:
    """A worker's share of a global batch.

    Attributes:
        arrays: the flat arguments of a step.
        rows: the number of this worker's rows; 0 where `arrays` contain a stand-in.
        total: the number of rows of the batch; 0 where no argument has rows.
    """

    arrays: tuple[Array, ...]
    rows: int = 0
    total: int = 0

    @property
    def is_stand_in(self) -> bool:
        """Whether the worker has no rows of a non-empty batch."""
        return self.rows == 0 < self.total

    def weight_in(self, total: int) -> float:
        """Its weight as a micro-batch, of the workers' all, of a batch of `total` rows; 1 where there are no rows."""
        return self.total / total if total else 1.0


class ReplicatedPart:
    """A part of a batch that all workers get in full, as its length differs from the batch's.

    Attributes:
        array: the part.
        shape: the shape of a part without rows.
    """

    def __init__(self, array: Array) -> None:
        self.array = array
        self.shape: tuple[int, ...] = ()

    def __array__(self, dtype: DType = None, copy: bool | None = None) -> Array:
        return np.asarray(self.array, dtype)


class RaggedRows:
    """The rows of a ragged tensor as arrays, which can be sent and sliced without TensorFlow.

    Attributes:
        values: flat, [n, ...].
        splits: for each level, the outermost first: the row splits of the next level.
        shape: the number of rows, and open dimensions.
    """

    def __init__(self, values: Array, splits: Sequence[Array]) -> None:
        self.values, self.splits = values, tuple(splits)
        self.shape: tuple[int | None, ...] = (len(self.splits[0]) - 1, None)

    @staticmethod
    def of(ragged: RaggedTensor) -> RaggedRows:
        """The rows of an eager tf.RaggedTensor."""
        values, *splits = (np.asarray(part) for part in tf.nest.flatten(ragged, expand_composites=True))
        return RaggedRows(values, splits)

    def __getitem__(self, rows: slice) -> RaggedRows:
        first, end, _ = rows.indices(len(self.splits[0]) - 1)
        splits = []
        for ends in self.splits:
            row_ends = ends[first : end + 1]
            first, end = int(row_ends[0]), int(row_ends[-1])
            splits.append(row_ends - row_ends[0])
        return RaggedRows(self.values[first:end], splits)

    def parts(self) -> list[Array]:
        """Its arrays in the order in which `tf.nest` flattens a ragged tensor."""
        return [self.values, *self.splits]


def pack_batch(batch: Nest) -> list[Array | RaggedRows | ReplicatedPart]:
    """The flat parts of a batch, without None, in a form that can be sent."""
    return [_portable(one) for one in tf.nest.flatten(batch) if one is not None]


def _portable(part: TensorLike) -> Array | RaggedRows | ReplicatedPart:
    if isinstance(part, tf.RaggedTensor):
        return RaggedRows.of(part)
    return ReplicatedPart(np.asarray(part)) if isinstance(part, ReplicatedPart) else np.asarray(part)


def find_replicated_parts(parts: Sequence[TensorLike]) -> frozenset[int]:
    """The indices of the parts of a batch that all workers get in full: those whose length differs from the batch's.

    The batch has the length of the parts with the most elements. A batch with a ragged part has no such parts.

    Args:
        parts: flat, of a first batch: arrays, tensors, or specs whose shapes are known.
    """
    if any(isinstance(one, tf.RaggedTensor | tf.RaggedTensorSpec | RaggedRows) for one in parts):
        return frozenset()
    shapes = {number: tuple(one.shape) for number, one in enumerate(parts) if one is not None and len(one.shape)}
    sizes: dict[int, int] = {}
    for shape in shapes.values():
        sizes[shape[0]] = sizes.get(shape[0], 0) + int(np.prod([dim or 1 for dim in shape]))
    most = max(sizes, key=lambda length: sizes[length], default=0)
    return frozenset(number for number, shape in shapes.items() if shape[0] != most)


def check_lengths(parts: Sequence[TensorLike | NumberedRows | RaggedRows | ReplicatedPart]) -> None:
    """Refuses a batch whose parts have unequal numbers of rows, except those that all workers get in full.

    Raises:
        SessionError: they have unequal numbers.
    """
    if len(lengths := lengths_of(parts)) > 1:
        raise SessionError(_UNEQUAL.format(lengths=", ".join(map(str, lengths))))


def lengths_of(parts: Sequence[TensorLike | NumberedRows | RaggedRows | ReplicatedPart]) -> list[int]:
    """The distinct lengths of the parts of a batch, except those that all workers get in full."""
    return sorted({count_rows([one]) for one in parts if _has_rows(one)})


def count_rows(batch: Nest) -> int:
    """The length of a batch, by its first part with rows; 0 where none has any."""
    first = next((one for one in tf.nest.flatten(batch) if _has_rows(one)), None)
    if first is None:
        return 0
    return int(first.nrows()) if isinstance(first, tf.RaggedTensor) else int(first.shape[0])


def examples_of(batch: Nest, size: int) -> list[int]:
    """A worker's number of rows of each flat argument of a step; for the values of ragged rows, the mean over workers.

    Args:
        batch: the global batch.
        size: number of workers.
    """
    flat = tf.nest.flatten(batch, expand_composites=True)
    return [-(-int(one.shape[0]) // size) if _has_rows(one) else 0 for one in flat]


def take_part(batch: Nest, rank: int, size: int, islands: int = 1) -> BatchPart:
    """A worker's rows of a batch; concatenated in rank order, they are the batch. Scalars go to all workers.

    Args:
        batch: arrays, tensors, and rows of the types of this package; a batch without rows goes to all workers in full.
        rank: of the worker.
        size: number of workers.
        islands: into how many they are cut; the total of a share is then that of the island's rows.

    Raises:
        SessionError: an island has no row.
    """
    rows, (island, replica) = count_rows(batch), divmod(rank, size // islands)
    begin, after = locate_part(rows, island, islands)
    total = after - begin
    if not any(_has_rows(one) for one in tf.nest.flatten(batch)):
        return BatchPart(tuple(np.asarray(one) for one in tf.nest.flatten(batch) if one is not None), rows=1)
    if islands > 1 and not total:
        raise SessionError(_NO_ROW.format(rows=rows, islands=islands))
    first, end = locate_part(total, replica, size // islands)
    row_range = slice(begin + first, begin + max(end, min(first + 1, total)))
    arrays: list[Array] = []
    for one in tf.nest.flatten(batch):
        if isinstance(one, tf.RaggedTensor | RaggedRows):
            ragged = one if isinstance(one, RaggedRows) else RaggedRows.of(one)
            arrays += ragged[row_range].parts()
        elif isinstance(one, NumberedRows):
            arrays.append(one[row_range])
        elif one is not None:  # sliced by NumPy, in a tenth of the time of an op
            arrays.append(np.asarray(one)[row_range] if _has_rows(one) else np.asarray(one))
    return BatchPart(tuple(arrays), end - first, total)


def _has_rows(one: TensorLike | NumberedRows | RaggedRows | ReplicatedPart | None) -> bool:
    return one is not None and len(one.shape) > 0
