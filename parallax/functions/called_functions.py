"""What the script calls between the steps of a session finds the variables that the session trains.

A `tf.function` reads and writes variables by their handles, past the methods that a mirrored variable has (mirrors.py).
So each call of one first brings the variables that it takes up to date, and tells which it may have written.
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import tensorflow as tf
from tensorflow.python.eager.polymorphic_function.concrete_function import ConcreteFunction

from parallax.functions.mirrors import Mirrors
from parallax.types import Nest, Tensor, TensorLike

_READS = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape", "VarIsInitializedOp")


def watch_calls(mirrors: Mirrors) -> None:
    """From here on, every function that is called eagerly finds a session's values, and leaves them in it.

    Args:
        mirrors: of the session; all workers must call the same functions in the same order.
    """
    own = ConcreteFunction._call_flat
    taken: WeakKeyDictionary[ConcreteFunction, tuple[tuple[str, bool], ...]] = WeakKeyDictionary()

    def call_flat(
        self: ConcreteFunction, tensor_inputs: Sequence[TensorLike], captured_inputs: Sequence[Tensor]
    ) -> Nest:
        if not tf.executing_eagerly():
            return own(self, tensor_inputs, captured_inputs)
        if self not in taken:
            taken[self] = _taken(self, mirrors)
        for name, _ in taken[self]:
            mirrors.refresh(name)
        found = own(self, tensor_inputs, captured_inputs)
        mirrors.note_written(name for name, is_written in taken[self] if is_written)
        return found

    ConcreteFunction._call_flat = call_flat


def _taken(concrete: ConcreteFunction, mirrors: Mirrors) -> tuple[tuple[str, bool], ...]:
    """(name, whether it may be written) of each mirrored variable that a function takes."""
    names = mirrors.name_by_handle()
    return tuple(
        (names[id(outer)], any(op.type not in _READS for op in inner.consumers()))
        for outer, inner in concrete.graph.captures
        if id(outer) in names
    )
