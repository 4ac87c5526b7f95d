"""Rows of random tensors, each drawn by its owner alone (parallax/native/random_rows.cc).

TensorFlow draws a value from the two seeds and the value's position in the tensor, so the op enters the stream at the
groups of the requested rows. Like the user's op it counts its runs: each run draws other values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from parallax.base.types import DType, Tensor
from parallax.graph.ownership import Ownership
from parallax.transform.building.all_to_all import native_ops

UNIFORM, NORMAL, TRUNCATED_NORMAL, UNIFORM_INT = "uniform", "normal", "truncated_normal", "uniform_int"
TYPES = ("float16", "bfloat16", "float32", "float64", "int32", "int64")
"""Names of the element types that can be drawn by row."""


@dataclass(frozen=True, slots=True)
class DrawnTensor:
    """A tensor that a random op draws.

    Attributes:
        distribution: one of the four above.
        dtype: TensorFlow's element type, one of TYPES.
        shape: full shape, `[rows, ...]`.
    """

    distribution: str
    dtype: DType
    shape: tuple[int, ...]


def random_rows(
    tensor: DrawnTensor,
    ownership: Ownership,
    holder: int,
    seeds: tuple[int, int] = (0, 0),
    stream: Sequence[Tensor] = (),
    bounds: Sequence[Tensor] = (),
) -> Tensor:
    """One owner's rows of a random tensor, bit for bit, run by run.

    Args:
        tensor: the full tensor.
        ownership: the map from rows to owners.
        holder: the owner whose rows are drawn.
        seeds: `seed` and `seed2` of the op that draws the full tensor; without a stream.
        stream: key `[1]` and counter `[2]` (uint64) of a stateless op.
        bounds: for integers the minimum, and the maximum plus one.

    Returns:
        `[count, ...]`, in the order of the owner's local rows.

    Raises:
        TransformError: the library has not been built.
    """
    total, *row_shape = tensor.shape
    return native_ops().parallax_random_rows(
        stream=list(stream),
        bounds=[tf.cast(bound, tf.int64) for bound in bounds],
        dtype=tensor.dtype,
        distribution=tensor.distribution,
        seeds=list(seeds),
        total=total,
        turn=ownership.slots,
        slots=list(ownership.slots_of(holder)),
        shape=[ownership.count(holder, total), *row_shape],
        name="random_rows",
    )
