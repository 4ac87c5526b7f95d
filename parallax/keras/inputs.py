"""What a worker takes of a global batch: its share of the rows.

All workers read the same input and each takes its rows, so that the batches of all joined are those of one process, in
its order. That the input is the same is looked at in each step, by a digest.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import tensorflow as tf

from parallax.errors import GraphError

_LOOKED_AT_BYTES = 1 << 14


def open_spec(spec: Any) -> Any:
    """The spec of a batch of any length.

    Args:
        spec: the structure of a dataset's elements, of tf.TensorSpec; what is Optional becomes None.

    Raises:
        GraphError: an element has no rows.
    """
    return tf.nest.map_structure(_open, spec)


def _open(spec: Any) -> Any:
    if isinstance(spec, tf.OptionalSpec):
        return None
    if isinstance(spec, tf.RaggedTensorSpec):
        return tf.RaggedTensorSpec([None, *spec.shape[1:]], spec.dtype, spec.ragged_rank, spec.row_splits_dtype)
    if not isinstance(spec, tf.TensorSpec) or spec.shape.rank is None or spec.shape.rank == 0:
        raise GraphError(
            f"A batch must be of tensors whose first dimension is the batch, and there is {spec}. Batch the dataset, "
            "or make it dense (tf.sparse.to_dense) in the input."
        )
    return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype, spec.name)


def without_optionals(batch: Any) -> Any:
    """A batch in which what is Optional is None, as Keras's steps take it."""
    return tf.nest.map_structure(lambda one: None if isinstance(one, tf.experimental.Optional) else one, batch)


def rows_of(batch: Any) -> int:
    """The length of a batch."""
    first = next(one for one in tf.nest.flatten(batch) if one is not None)
    return int(first.nrows()) if isinstance(first, tf.RaggedTensor) else int(first.shape[0])


def share_of(batch: Any, rank: int, size: int) -> list[Any]:
    """A worker's rows of a batch, as the flat arguments of a step: those of all ranks, in order, are the batch."""
    rows = rows_of(batch)
    first, end = rows * rank // size, rows * (rank + 1) // size
    share: list[Any] = []
    for one in tf.nest.flatten(batch):
        if isinstance(one, tf.RaggedTensor):
            share += [part.numpy() for part in tf.nest.flatten(one[first:end], expand_composites=True)]
        elif one is not None:
            share.append(one.numpy()[first:end])  # cut by NumPy, a tenth of what an op takes
    return share


def digest_of(batch: Any) -> int:
    """A number below 2**16, which is most likely another for another batch."""
    value = 0
    for one in tf.nest.flatten(batch, expand_composites=True):
        if one is None:
            continue
        array = one.numpy()
        value = zlib.crc32(str(array.shape).encode(), value)
        if array.dtype == object:
            value = zlib.crc32(repr(array.ravel()[:64].tolist()).encode(), value)
            continue
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        value = zlib.crc32(data[:_LOOKED_AT_BYTES].tobytes(), value)
        value = zlib.crc32(data[-_LOOKED_AT_BYTES:].tobytes(), value)
    return value & 0xFFFF
