"""Initial values and batches that do not depend on how many processes draw them, or in what order."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from functools import lru_cache
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
        # Not a constant, which TensorFlow would fold into initial values that the session holds from then on.
        seed = tf.compat.v1.placeholder_with_default(self._seed, [2])
        whole = tf.random.stateless_uniform(full, seed, -self._bound, self._bound, dtype)
        if full == list(shape):
            return whole
        return tf.slice(whole, list(partition_info.var_offset), list(shape))


def glorot(scope: Any) -> Any:
    """A custom getter for the variable scope `scope` now open: variables that come without initial values draw theirs.

    They are Uniform by Glorot's bound, drawn by the variable's name within the scope. Made for model code that leaves
    the initial values to tf.compat.v1.get_variable, whose own depend on partitions.
    """
    prefix = scope.name + "/" if scope.name else ""

    def get(getter: Any, name: str, *args: Any, initializer: Any = None, **kwargs: Any) -> Any:
        if initializer is None:
            *field, fan_in, fan_out = kwargs["shape"]
            bound = (6.0 / ((fan_in + fan_out) * math.prod(field))) ** 0.5
            initializer = Uniform(name.removeprefix(prefix), bound)
        return getter(name, *args, initializer=initializer, **kwargs)

    return get


def generator(*numbers: int) -> np.random.Generator:
    """Random numbers of one worker and step, or whatever else the numbers say."""
    return np.random.default_rng(numbers)


def zipf(draw: np.random.Generator, skew: float, rows: int, shape: Sequence[int]) -> np.ndarray:
    """Ids below `rows`, id k with a probability in proportion to (k + 1) ** -skew, `shape` int32."""
    return np.searchsorted(_cumulative(skew, rows), draw.random(tuple(shape))).astype(np.int32)


@lru_cache(maxsize=64)
def _cumulative(skew: float, rows: int) -> np.ndarray:
    """Probability of an id at most k; kept, as it takes longer than all else of a batch."""
    cumulative = np.cumsum(np.arange(1, rows + 1, dtype=np.float64) ** -skew)
    return np.asarray(cumulative / cumulative[-1])


def log_uniform(draw: np.random.Generator, rows: int, count: int) -> tuple[np.ndarray, int]:
    """Draws ids below `rows` until `count` are distinct, as TensorFlow's log-uniform candidate sampler does.

    Returns:
        The distinct ids, `[count]` int32 in the order drawn, and how many draws it took.
    """
    if not count < rows:
        raise ValueError(f"The ids drawn must be fewer than the {rows} rows, and {count} were asked for.")
    seen: dict[int, None] = {}
    tries = 0
    while True:
        for drawn in np.exp(draw.random(2 * count) * math.log(rows + 1)).astype(np.int64) - 1:
            tries += 1
            seen.setdefault(min(int(drawn), rows - 1))
            if len(seen) == count:
                return np.fromiter(seen, np.int32, count), tries
