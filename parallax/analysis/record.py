"""Remembers where autodiff delivered gradients, while the user's script builds its graph.

`install()` wraps the two functions that every gradient of TensorFlow goes through: `tf.gradients` (and with it
`Optimizer.compute_gradients`) and `GradientTape.gradient`. A record changes nothing in the graph: it names the targets,
the tensors delivered and the ops made meanwhile, which is what separates autodiff from the user's post-processing.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

_ATTRIBUTE = "_parallax_gradient_records"


@dataclass(frozen=True, slots=True)
class GradientRecord:
    """One call of autodiff.

    Attributes:
        first_op: number of ops in the graph before the call.
        end_op: number of ops after it; ops with an index in [first_op, end_op) are autodiff's own.
        pairs: (target tensor, values tensor, indices tensor or None) for every target with a gradient.
    """

    first_op: int
    end_op: int
    pairs: tuple[tuple[str, str, str | None], ...]


def install() -> None:
    """Starts recording; a second call changes nothing. Imports TensorFlow."""
    from tensorflow.python.eager import backprop
    from tensorflow.python.ops import gradients_util

    if not hasattr(gradients_util._GradientsHelper, _ATTRIBUTE):
        gradients_util._GradientsHelper = _recording(gradients_util._GradientsHelper, targets_at=1, name="xs")
    if not hasattr(backprop.GradientTape.gradient, _ATTRIBUTE):
        backprop.GradientTape.gradient = _recording(backprop.GradientTape.gradient, targets_at=2, name="sources")


def records_of(graph: Any) -> tuple[GradientRecord, ...]:
    """What has been recorded for a graph, oldest first."""
    return tuple(getattr(graph, _ATTRIBUTE, ()))


def _recording(function: Any, targets_at: int, name: str) -> Any:
    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        import tensorflow as tf

        graph = tf.compat.v1.get_default_graph()
        first_op = graph.version
        result = function(*args, **kwargs)
        targets = kwargs[name] if name in kwargs else args[targets_at]
        pairs = [_pair(t, g) for t, g in zip(tf.nest.flatten(targets), _flatten(result), strict=False)]
        found = tuple(pair for pair in pairs if pair is not None)
        if found and not tf.executing_eagerly():
            record = GradientRecord(first_op, graph.version, found)
            setattr(graph, _ATTRIBUTE, (*records_of(graph), record))
        return result

    setattr(wrapped, _ATTRIBUTE, True)
    return wrapped


def _flatten(result: Any) -> list[Any]:
    """Gradients in the order of their targets; IndexedSlices stay whole."""
    import tensorflow as tf

    return list(tf.nest.flatten(result, expand_composites=False))


def _pair(target: Any, gradient: Any) -> tuple[str, str, str | None] | None:
    import tensorflow as tf

    handle = getattr(target, "handle", None)
    tensor = handle if handle is not None else getattr(target, "_ref", lambda: target)()
    if gradient is None or not hasattr(tensor, "op"):
        return None
    if isinstance(gradient, tf.IndexedSlices):
        return tensor.name, gradient.values.name, gradient.indices.name
    return (tensor.name, gradient.name, None) if hasattr(gradient, "op") else None
