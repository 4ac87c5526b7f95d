"""What a step tells its metrics of the batch: marked while the step is traced, so that workers' metrics add up.

Keras counts losses with `Mean` metrics, of the total loss and of each output's, with the batch's length as the weight
or with none. Every scalar that a `Mean` is updated with is taken for a mean over the batch, as losses are, of trackers
in a `train_step` or `test_step` of the user's own too. In the workers' graphs each then counts by the worker's share of
all examples, and a weight is that of all workers together; what all have alike is counted by one of them
(analysis/layouts/visit_step.py). So the workers' states, added up, are the one process's.

Metrics that are updated with values of the examples (accuracy, mean absolute error) are as they were: each worker
counts its own, and the states added up over the workers are those of one process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import tensorflow as tf

from parallax.graph.batches import COUNTED, VALUE, WEIGHT, mark_reported
from parallax.types import Argument, KerasMetric, Tensor, TensorLike


@contextmanager
def reported_means(mean: KerasMetric | type[KerasMetric]) -> Iterator[None]:
    """Within it, the scalars that Means are updated with are marked as reported.

    Args:
        mean: what has the method: the class, or one Mean where each keeps the method that it was made with.
    """
    update = mean.update_state
    is_class = isinstance(mean, type)

    def updating(*args: Argument, **kwargs: Argument) -> object:
        own, rest = (args[:1], args[1:]) if is_class else ((), args)
        return update(*own, **_marked(own[0] if is_class else mean, *rest, **kwargs))

    _set(mean, updating)
    try:
        yield
    finally:
        _set(mean, update)


def _marked(
    mean: KerasMetric, values: TensorLike, sample_weight: TensorLike | None = None
) -> dict[str, TensorLike | None]:
    """What a Mean is updated with, marked where it is of the whole batch."""
    is_weighted_at_once = sample_weight is not None and _is_scalar(sample_weight)
    if _is_scalar(values) and (sample_weight is None or is_weighted_at_once):
        values = _reported(values, mean.dtype, COUNTED)
    if is_weighted_at_once:
        sample_weight = _reported(sample_weight, mean.dtype, WEIGHT)
    return {"values": values, "sample_weight": sample_weight}


def _set(mean: KerasMetric | type[KerasMetric], update: Callable[..., object]) -> None:
    (setattr if isinstance(mean, type) else object.__setattr__)(mean, "update_state", update)


def _is_scalar(value: TensorLike) -> bool:
    return bool(tf.convert_to_tensor(value).shape.rank == 0)


def _reported(value: TensorLike, dtype: str, kind: str) -> Tensor:
    found = tf.identity(tf.cast(value, dtype), name=f"reported_{kind}")
    mark_reported(found, kind)
    return found


def reported_value(value: Tensor) -> Tensor:
    """A scalar of the batch that a step logs itself, marked as reported."""
    return _reported(value, value.dtype, VALUE)
