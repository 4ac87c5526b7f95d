"""Selects the statistics of batch normalizations while steps are traced: of the global batch, or per worker.

Per-worker statistics normalize the per-worker batch. Moving averages use their mean over all examples, which is the
mean of the workers' statistics, weighted by their shares of the batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from unittest import mock

import tensorflow as tf

from parallax.base.types import KerasModel, Tensor
from parallax.graph.local_statistics import average_locally, mark_statistics, normalizing_locally, sum_locally
from parallax.settings.config import OWN

_wanted: list[str] = []


@contextmanager
def statistics_of(batch: str) -> Iterator[None]:
    """A context in which steps are traced with the statistics of `batch`: "global" or "own"."""
    _wanted.append(batch)
    try:
        yield
    finally:
        _wanted.pop()


def fused_normalizations() -> AbstractContextManager[None]:
    """A context in which fused normalizations use the selected statistics."""
    return normalizing_locally() if OWN in _wanted[-1:] else nullcontext()


@contextmanager
def normalizations_of_keras() -> Iterator[None]:
    """A context in which Keras's batch normalizations use the selected statistics, and mark them."""
    from keras.src.backend.tensorflow import nn
    from keras.src.layers.normalization.batch_normalization import BatchNormalization

    is_local, rows = OWN in _wanted[-1:], {}  # type: bool, dict[int, tuple[Tensor, Tensor, Tensor]]
    moments, normalize = BatchNormalization._moments, nn.batch_normalization

    def mark_moments(layer: KerasModel, inputs: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        if not is_local or layer.renorm:
            with mark_statistics():
                batch_moments = moments(layer, inputs, mask)
                return batch_moments[0], batch_moments[1]
        mean, variance = _compute_local_moments(inputs, mask, layer._reduction_axes)
        batch_moments = [tf.reduce_mean(one, layer._reduction_axes) for one in (mean, variance)]
        rows[id(batch_moments[0])] = batch_moments[0], mean, variance
        return batch_moments[0], batch_moments[1]

    def normalize_apart(
        x: Tensor, mean: Tensor, variance: Tensor, axis: int, *others: Tensor, **options: Tensor
    ) -> Tensor:
        if id(mean) not in rows:
            return normalize(x, mean, variance, axis, *others, **options)
        _, local_mean, local_variance = rows[id(mean)]
        zero, one = tf.zeros_like(mean), tf.ones_like(mean)
        options = dict(zip(("offset", "scale", "epsilon"), others, strict=False)) | options
        epsilon = options.pop("epsilon", 1e-3)
        scaled = (x - local_mean) * tf.math.rsqrt(local_variance + epsilon)
        return normalize(scaled, zero, one, axis, **options, epsilon=0.0)

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(BatchNormalization, "_moments", mark_moments))
        stack.enter_context(mock.patch.object(nn, "batch_normalization", normalize_apart))
        yield


def _compute_local_moments(inputs: Tensor, mask: Tensor | None, axes: list[int]) -> tuple[Tensor, Tensor]:
    """Mean and variance of the per-worker batch, in the shape of the inputs, as Keras computes them."""
    if mask is None:
        mean = average_locally(inputs, axes)
        return mean, average_locally(tf.square(inputs - mean), axes)
    import keras

    is_counted = tf.broadcast_to(tf.cast(mask, bool)[..., None], tf.shape(inputs))
    count = sum_locally(tf.cast(is_counted, inputs.dtype), axes) + keras.config.epsilon()
    mean = sum_locally(tf.where(is_counted, inputs, 0.0), axes) / count
    return mean, sum_locally(tf.where(is_counted, tf.square(inputs - mean), 0.0), axes) / count
