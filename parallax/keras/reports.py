"""What a step tells its metrics of the batch: marked while the step is traced, so that workers' metrics add up.

Keras counts losses with `Mean` metrics, of the total loss and of each output's, with the batch's length as the weight
or with none. Every scalar that a `Mean` is updated with is taken for a mean over the batch, as losses are, of trackers
in a `train_step` or `test_step` of the user's own too. In the workers' graphs then holds:

- the plain mean over the workers of what a `Mean` is updated with is the value of the joined batch;
- the state (`total`, `count`) of a `Mean` that was updated with such scalars, added up over the workers, is the state
  that one process has where the weight is the batch's length, and W times it where there is no weight. `total / count`
  of the sums is the one process's result in both cases.

Metrics that are updated with values of the examples (accuracy, mean absolute error) are as they were: each worker
counts its own, and the states added up over the workers are those of one process.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from parallax.graph.batches import VALUE, WEIGHT, mark_reported


@contextmanager
def reported_means() -> Iterator[None]:
    """Within it, the scalars that `keras.metrics.Mean` is updated with are marked as reported."""
    mean = sys.modules["keras"].metrics.Mean
    update = mean.update_state

    def updating(self: Any, values: Any, sample_weight: Any = None) -> Any:
        if _is_scalar(values) and (sample_weight is None or _is_scalar(sample_weight)):
            values = _reported(values, self.dtype, VALUE)
            sample_weight = None if sample_weight is None else _reported(sample_weight, self.dtype, WEIGHT)
        return update(self, values, sample_weight=sample_weight)

    mean.update_state = updating
    try:
        yield
    finally:
        mean.update_state = update


def _is_scalar(value: Any) -> bool:
    return bool(tf.convert_to_tensor(value).shape.rank == 0)


def _reported(value: Any, dtype: str, kind: str) -> Any:
    found = tf.identity(tf.cast(value, dtype), name=f"reported_{kind}")
    mark_reported(found, kind)
    return found
