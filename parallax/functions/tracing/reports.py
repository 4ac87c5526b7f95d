"""What a step logs of the batch itself, marked while the step is traced, so that workers' logs are one process's."""

from __future__ import annotations

import tensorflow as tf

from parallax.graph.batches import VALUE, mark_reported
from parallax.types import Tensor


def reported_value(value: Tensor) -> Tensor:
    """A scalar of the batch that a step logs, marked as reported."""
    found = tf.identity(value, name=f"reported_{VALUE}")
    mark_reported(found, VALUE)
    return found
