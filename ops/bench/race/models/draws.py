"""Initial values and batches that do not depend on how many processes draw them, or in what order."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np


class Uniform:
    """Initial values in [-bound, bound), the same whether a variable is made whole or in partitions.

    Called by tf.compat.v1.get_variable, which tells of a partition through `partition_info`.
    """

    def __init__(self, name: str, bound: float) -> None:
        self._seed = (zlib.crc32(name.encode()), 0)
        self._bound = bound

    def __call__(self, shape: Sequence[int], dtype: Any = None, partition_info: Any = None) -> Any:
        """The values of a variable of this shape, or of the partition that `partition_info` describes."""
        import tensorflow as tf

        full = list(partition_info.full_shape) if partition_info is not None else list(shape)
        dtype = dtype or tf.float32
        whole = tf.random.stateless_uniform(full, self._seed, -self._bound, self._bound, dtype)
        if full == list(shape):
            return whole
        return tf.slice(whole, list(partition_info.var_offset), list(shape))


def generator(*numbers: int) -> np.random.Generator:
    """Random numbers of one worker and step, or whatever else the numbers say."""
    return np.random.default_rng(numbers)


def zipf(draw: np.random.Generator, skew: float, rows: int, shape: Sequence[int]) -> np.ndarray:
    """Ids below `rows`, id k with a probability in proportion to (k + 1) ** -skew, `shape` int32."""
    weights = np.arange(1, rows + 1, dtype=np.float64) ** -skew
    cumulative = np.cumsum(weights)
    return np.searchsorted(cumulative / cumulative[-1], draw.random(tuple(shape))).astype(np.int32)
