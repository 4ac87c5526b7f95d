"""The partitioner that programs written for Parallax 2019 pass to `tf.get_variable`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from parallax.base.errors import ConfigError
from parallax.settings import checks


def get_partitioner(min_partitions: int) -> Any:
    """Cuts a variable by rows into so many parts, in size at most one row apart.

    Any count will do: rows that it does not divide (a prime vocabulary) give parts of two sizes, and a variable with
    fewer rows gets one part a row. Changed: 2019 took more parts when its search found that faster; here the rows of a
    variable travel as the plan says, whatever its parts.

    Args:
        min_partitions: the number of parts.

    Returns:
        What `tf.get_variable` takes as `partitioner`.

    Raises:
        ConfigError: when it is no whole number from 1.
    """
    if not checks.is_int(min_partitions) or min_partitions < 1:
        raise ConfigError(f"min_partitions must be an integer of at least 1, got {min_partitions!r}.")
    return tf.compat.v1.fixed_size_partitioner(min_partitions)
