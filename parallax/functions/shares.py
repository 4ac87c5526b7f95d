"""Cuts a global batch into the workers' shares.

All workers read the same input, and each takes its rows: one after the other, the shares are the batch of one process.
That the input is the same is checked in each step, by a digest. A batch that has fewer rows than there are workers
leaves some without: these compute on a stand-in, a row of another worker, which counts for nothing
(transform/building/shares.py). So no op is run on an empty batch, which many kernels do not take.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from parallax.functions.numbered_rows import NumberedRows
from parallax.graph.batches import place_of_share
from parallax.types import Array, Nest, TensorLike

OTHER_INPUT = (
    "All workers must read the same batches, of which each takes its rows, and this one differs. Seed what "
    "is shuffled or drawn (tf.random.set_seed, keras.utils.set_random_seed before the dataset is made), and sort what "
    "is listed from disk. What several threads draw (a PyDataset with workers, a map with num_parallel_calls in a "
    "dataset that no `for` goes over) comes in another order each time: draw in one thread, in a map leave "
    "num_parallel_calls out, or draw by a seed of the element (tf.random.stateless_uniform)."
)

_LOOKED_AT_BYTES = 1 << 14


@dataclass(frozen=True, slots=True)
class Share:
    """What a worker takes of a global batch.

    Attributes:
        arrays: the flat arguments of a step.
        rows: how many rows this worker has; 0 where `arrays` hold a stand-in.
        total: how many rows the batch has; 0 where no argument has rows.
    """

    arrays: tuple[Array, ...]
    rows: int = 0
    total: int = 0

    @property
    def is_stand_in(self) -> bool:
        """Whether the worker has no rows of a batch that has some."""
        return self.rows == 0 < self.total


def rows_of(batch: Nest) -> int:
    """The length of a batch, by the first of its parts that has rows."""
    first = next(one for one in tf.nest.flatten(batch) if _has_rows(one))
    return int(first.nrows()) if isinstance(first, tf.RaggedTensor) else int(first.shape[0])


def examples_of(batch: Nest, size: int) -> list[int]:
    """How many rows of each flat argument of a step a worker takes; of the values of ragged rows a worker's mean.

    Args:
        batch: of all workers.
        size: number of workers.
    """
    flat = tf.nest.flatten(batch, expand_composites=True)
    return [-(-int(one.shape[0]) // size) if _has_rows(one) else 0 for one in flat]


def share_of(batch: Nest, rank: int, size: int) -> Share:
    """A worker's rows of a batch; those of all ranks, in order, are the batch. Scalars go to all workers."""
    total = rows_of(batch)
    first, end = place_of_share(total, rank, size)
    taken = slice(first, max(end, min(first + 1, total)))
    arrays: list[Array] = []
    for one in tf.nest.flatten(batch):
        if isinstance(one, tf.RaggedTensor):
            arrays += [np.asarray(part) for part in tf.nest.flatten(one[taken], expand_composites=True)]
        elif isinstance(one, NumberedRows):
            arrays.append(one[taken])
        elif one is not None:  # cut by NumPy, a tenth of what an op takes
            arrays.append(np.asarray(one)[taken] if _has_rows(one) else np.asarray(one))
    return Share(tuple(arrays), end - first, total)


def digest_of(batch: Nest) -> int:
    """A number below 2**16, which is most likely another for another batch."""
    value = 0
    for one in tf.nest.flatten(batch, expand_composites=True):
        if one is None:
            continue
        array = np.asarray(one)
        value = zlib.crc32(str(array.shape).encode(), value)
        if array.dtype == object:
            value = zlib.crc32(repr(array.ravel()[:64].tolist()).encode(), value)
            continue
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        value = zlib.crc32(data[:_LOOKED_AT_BYTES], value)
        value = zlib.crc32(data[max(_LOOKED_AT_BYTES, len(data) - _LOOKED_AT_BYTES) :], value)
    return value & 0xFFFF


def _has_rows(one: TensorLike | NumberedRows | None) -> bool:
    return one is not None and len(one.shape) > 0
