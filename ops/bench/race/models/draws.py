"""Initial values and batches that depend neither on the number of processes that draw them nor on their order."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np


class Uniform:
    """An initializer with values in [-bound, bound), the same for a whole variable and for its partitions.

    tf.compat.v1.get_variable calls it, and describes a partition by `partition_info`.
    """

    def __init__(self, name: str, bound: float) -> None:
        self._seed = (zlib.crc32(name.encode()), 0)
        self._bound = bound

    def __call__(self, shape: Sequence[int], dtype: Any = None, partition_info: Any = None) -> Any:
        """Returns the values of a variable of this shape, or of the partition that `partition_info` describes."""
        import tensorflow as tf

        full = list(partition_info.full_shape) if partition_info is not None else list(shape)
        dtype = dtype or tf.float32
        # Not a constant: TensorFlow would fold it into initial values, which the session would keep in memory.
        seed = tf.compat.v1.placeholder_with_default(self._seed, [2])
        whole = tf.random.stateless_uniform(full, seed, -self._bound, self._bound, dtype)
        if full == list(shape):
            return whole
        return tf.slice(whole, list(partition_info.var_offset), list(shape))


def glorot(scope: Any) -> Any:
    """Returns a custom getter of the open variable scope `scope`, for variables without an initializer.

    These variables become Uniform with Glorot's bound, seeded by their names within the scope. It is for model code
    that relies on the default initializer of tf.compat.v1.get_variable, whose values depend on partitions.
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
    """Returns a random generator that is seeded by these numbers, such as worker and step."""
    return np.random.default_rng(numbers)


def zipf(draw: np.random.Generator, skew: float, rows: int, shape: Sequence[int]) -> np.ndarray:
    """Draws ids below `rows`, `shape` int32; the probability of id k is proportional to (k + 1) ** -skew."""
    return np.searchsorted(_cumulative(skew, rows), draw.random(tuple(shape))).astype(np.int32)


@lru_cache(maxsize=64)
def _cumulative(skew: float, rows: int) -> np.ndarray:
    """Returns the probabilities of an id of at most k; cached, as they take longer than the rest of a batch."""
    cumulative = np.cumsum(np.arange(1, rows + 1, dtype=np.float64) ** -skew)
    return np.asarray(cumulative / cumulative[-1])


def log_uniform(draw: np.random.Generator, rows: int, count: int) -> tuple[np.ndarray, int]:
    """Draws ids below `rows` until `count` are distinct, as TensorFlow's log-uniform candidate sampler does.

    Returns:
        The distinct ids, `[count]` int32 in the order drawn, and how many draws it took.
    """
    if not count < rows:
        raise ValueError(f"The number of drawn ids must be less than the {rows} rows, got {count}.")
    seen: dict[int, None] = {}
    tries = 0
    while True:
        for drawn in np.exp(draw.random(2 * count) * math.log(rows + 1)).astype(np.int64) - 1:
            tries += 1
            seen.setdefault(min(int(drawn), rows - 1))
            if len(seen) == count:
                return np.fromiter(seen, np.int32, count), tries
