"""What a worker takes of a global batch: its share of the rows.

All workers read the same input and each takes its rows, so that the batches of all joined are those of one process, in
its order. That the input is the same is looked at in each step, by a digest.
"""

from __future__ import annotations

import zlib

import numpy as np
import tensorflow as tf

from parallax.functions.numbered_rows import NumberedRows
from parallax.graph.batches import place_of_share
from parallax.types import Array, Nest, TensorLike

OTHER_INPUT = (
    "All workers must read the same batches, of which each takes its rows, and this one differs. Seed what "
    "is shuffled or drawn (tf.random.set_seed, keras.utils.set_random_seed before the dataset is made), and sort what "
    "is listed from disk."
)

_LOOKED_AT_BYTES = 1 << 14


def rows_of(batch: Nest) -> int:
    """The length of a batch, by the first of its parts that has rows."""
    first = next(one for one in tf.nest.flatten(batch) if _has_rows(one))
    return int(first.nrows()) if isinstance(first, tf.RaggedTensor) else int(first.shape[0])


def share_of(batch: Nest, rank: int, size: int) -> list[Array]:
    """A worker's rows of a batch, as the flat arguments of a step: those of all ranks, in order, are the batch.

    Scalars go to all workers.
    """
    first, end = place_of_share(rows_of(batch), rank, size)
    share: list[Array] = []
    for one in tf.nest.flatten(batch):
        if isinstance(one, tf.RaggedTensor):
            share += [np.asarray(part) for part in tf.nest.flatten(one[first:end], expand_composites=True)]
        elif isinstance(one, NumberedRows):
            share.append(one[first:end])
        elif one is not None:  # cut by NumPy, a tenth of what an op takes
            share.append(np.asarray(one)[first:end] if _has_rows(one) else np.asarray(one))
    return share


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
