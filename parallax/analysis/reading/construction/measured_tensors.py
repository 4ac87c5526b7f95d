"""Records the tensors whose shapes TensorFlow turned into constants while a script builds its graph.

Where a tensor's shape is known, `tf.shape`, `tf.size`, `tf.zeros_like` and `tf.ones_like` return constants, in which a
batch length cannot be distinguished from a width. The graph stores the tensor behind each constant; no op is added.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import NamedTuple

from parallax.base.types import Argument, Graph, Tensor

_ATTRIBUTE = "_parallax_measured_tensors"
_MEASURES = {"shape_internal": "shape", "size_internal": "size", "zeros_like_impl": "", "ones_like_impl": ""}


class MeasuredTensor(NamedTuple):
    """The tensor from which a constant was made: `what` is its `shape`, its `size`, or empty for a constant fill."""

    tensor: str
    what: str


def install_measures() -> None:
    """Starts recording; a second call has no effect. Imports TensorFlow."""
    from tensorflow.python.ops import array_ops

    for name, what in _MEASURES.items():
        function = getattr(array_ops, name)
        if not hasattr(function, _ATTRIBUTE):
            setattr(array_ops, name, _remembering(function, what))


def measured_in(graph: Graph) -> Mapping[str, MeasuredTensor]:
    """Constant of a graph -> the tensor from which TensorFlow made it."""
    return dict(getattr(graph, _ATTRIBUTE, {}))


def _remembering(function: Callable[..., Tensor], what: str) -> Callable[..., Tensor]:
    """Wraps a function that reads the shape of its first argument."""

    @functools.wraps(function)
    def wrapper(*args: Argument, **kwargs: Argument) -> Tensor:
        import tensorflow as tf

        made = function(*args, **kwargs)
        if not args or not tf.is_symbolic_tensor(args[0]) or not tf.is_symbolic_tensor(made):
            return made
        measured: Tensor = args[0]
        if made.op.type == "Const" and measured.graph is made.graph:
            if not hasattr(made.graph, _ATTRIBUTE):
                setattr(made.graph, _ATTRIBUTE, {})
            getattr(made.graph, _ATTRIBUTE)[made.op.name] = MeasuredTensor(str(measured.name), what)
        return made

    setattr(wrapper, _ATTRIBUTE, True)
    return wrapper
