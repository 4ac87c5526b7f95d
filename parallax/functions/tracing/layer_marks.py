"""Marks the outputs of layers while a step is traced, so that a model can be cut at layers by name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from parallax.base.types import Argument, KerasModel, Nest
from parallax.graph.cut.layers import mark_layer


@contextmanager
def mark_layers(kind: type[Any]) -> Iterator[None]:
    """A context in which the outputs of layers are marked.

    Args:
        kind: the base class of layers in a version of Keras.
    """
    original = kind.__call__

    def call(self: KerasModel, *args: Argument, **kwargs: Argument) -> Nest:
        outputs = original(self, *args, **kwargs)
        for one in tf.nest.flatten(outputs):
            if isinstance(one, tf.Tensor) and tf.is_symbolic_tensor(one):
                mark_layer(one.op, self.name)
        return outputs

    kind.__call__ = call
    try:
        yield
    finally:
        kind.__call__ = original
