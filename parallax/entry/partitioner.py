"""The partitioner that programs written for Parallax 2019 pass to `tf.get_variable`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from parallax.base.errors import ConfigError
from parallax.settings import checks


def get_partitioner(min_partitions: int) -> Any:
    """Splits a variable by rows into a number of parts, whose sizes differ by at most one row.

    Any count is valid: rows that it does not divide (a prime vocabulary) give parts of two sizes, and a variable with
    fewer rows gets one part per row. Changed: 2019 used more parts when its search found that faster; here the plan
    determines how the rows of a variable travel, whatever its parts.

    Args:
        min_partitions: the number of parts.

    Returns:
        The argument `partitioner` of `tf.get_variable`.

    Raises:
        ConfigError: when it is not a positive integer.
    """
    if not checks.is_int(min_partitions) or min_partitions < 1:
        raise ConfigError(f"min_partitions must be an integer of at least 1, got {min_partitions!r}.")
    return tf.compat.v1.fixed_size_partitioner(min_partitions)
