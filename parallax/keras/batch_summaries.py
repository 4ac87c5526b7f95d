"""Summaries that a model writes in its steps while `keras.callbacks.TensorBoard` has set a default writer.

Keras traces a step within its first batch, with the callback's writer. Here a step is traced before the callback has
one: the trace has a writer that stands for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import tensorflow as tf
from tensorflow.python.ops.summary_ops_v2 import SummaryWriter

from parallax.base.types import Argument, Handle, KerasCallback
from parallax.keras import keras3

_WRITERS = {"train": "_train_writer", "test": "_val_writer"}
_FIRST_BATCH = 1
"""The number that the callback has given the batch with which Keras traces a step."""


class CallbackWriter(SummaryWriter):  # type: ignore[misc]
    """Stands for the writer that a TensorBoard callback makes when training begins.

    Args:
        callback: the callback.
        name: the attribute with its writer.
    """

    def __init__(self, callback: KerasCallback, name: str) -> None:
        self._callback, self._name = callback, name

    def find_writer(self) -> Handle | None:
        """The writer's resource; None once it is closed."""
        writer = getattr(self._callback, self._name)
        return None if writer._closed else writer._resource

    @property
    def _resource(self) -> object:
        return self.find_writer

    def init(self) -> None:
        """Does nothing: the callback's writer is open."""

    def flush(self) -> None:
        """Does nothing: the callback flushes its writer."""

    def close(self) -> None:
        """Does nothing: the callback closes its writer."""


@contextmanager
def summaries_of_callbacks(arguments: Mapping[str, Argument], which: str) -> Iterator[None]:
    """A context for the trace of a step, with the default writer that Keras 3's trace has.

    Args:
        arguments: of the call of `fit` or `evaluate`.
        which: the step, "train" or "test".
    """
    kind = keras3.CALLBACKS.TensorBoard
    callbacks = [one for one in tf.nest.flatten(arguments.get("callbacks")) if isinstance(one, kind)]
    writing = next((one for one in callbacks if one.update_freq != "epoch"), None)
    if writing is None:
        yield
        return
    is_recorded = _FIRST_BATCH % writing.update_freq == 0
    with CallbackWriter(writing, _WRITERS[which]).as_default(_FIRST_BATCH), tf.summary.record_if(is_recorded):
        yield
