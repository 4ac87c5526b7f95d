"""Initial values of large variables in Keras, traced instead of computed.

A value is kept as a trace if TensorFlow can compute it again from the trace alone: without state, variables or arrays
of the script. All other values are computed at once, as in Keras.

A script draws from the generators of Python, NumPy and TensorFlow: their states are stored for a later computation.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import op_def_registry

from parallax.base.types import (
    Argument,
    ConcreteFunction,
    DType,
    RandomStates,
    Tensor,
    TensorLike,
    TensorShape,
    Variable,
)
from parallax.functions.tracing.traced_values import traced_variable

_LARGEST_CONSTANT_BYTES = 1 << 20
_NOT_TRACEABLE = (AttributeError, NotImplementedError, TypeError, ValueError)
"""Errors of Python code that uses a traced tensor as an array; genuine errors are raised again later."""


def making_large(limit: Callable[[], int], shape: TensorShape | None, dtype: DType) -> AbstractContextManager[object]:
    """A context in which a variable of this shape is traced, if it is large.

    Args:
        limit: returns the number of bytes from which it is.
        shape: of the variable; None where unknown.
        dtype: of the variable.
    """
    size = math.prod(shape) * tf.as_dtype(dtype).size if shape is not None else 0
    is_large = size > 0 and size >= limit()
    return tf.variable_creator_scope(_traced_where_possible) if is_large else nullcontext()


def _traced_where_possible(next_creator: Callable[..., Variable], **kwargs: Argument) -> Variable:
    """A variable with a traced initial value; a plain one where it cannot be traced, or outside eager execution."""
    initial = kwargs.get("initial_value")
    if not callable(initial) or not tf.executing_eagerly() or tf.distribute.has_strategy():
        return next_creator(**kwargs)
    before = random_states()
    try:
        traced = _trace(initial, kwargs.get("dtype"))
    except _NOT_TRACEABLE:
        traced = None
    if traced is None or not _can_be_repeated(traced):
        take_random_states(before)
        return next_creator(**kwargs)
    return traced_variable(traced, **{name: value for name, value in kwargs.items() if name != "initial_value"})


def _trace(initial: Callable[[], TensorLike], dtype: DType) -> ConcreteFunction:
    """The initial value's graph, a ConcreteFunction."""

    def value() -> Tensor:
        return tf.convert_to_tensor(initial(), dtype)

    return tf.function(value, autograph=False).get_concrete_function()


def _can_be_repeated(traced: ConcreteFunction) -> bool:
    """Whether the graph returns the same value whenever and wherever it is computed, and is small itself."""
    whole = traced.graph.as_graph_def()
    nodes = [*whole.node, *(node for function in whole.library.function for node in function.node_def)]
    is_alone = not traced.graph.captures and traced.outputs[0].shape.is_fully_defined()
    is_small = all(node.attr["value"].tensor.ByteSize() <= _LARGEST_CONSTANT_BYTES for node in nodes)
    return is_alone and is_small and not any(op_def_registry.get(node.op).is_stateful for node in nodes)


def random_states() -> RandomStates:
    """The current states; None for TensorFlow where it is not seeded."""
    eager = context.context()
    state = None if eager._seed is None else (eager._seed, eager._rng.getstate())  # of tf.data's shuffles too
    return random.getstate(), np.random.get_state(legacy=True), state


def take_random_states(states: RandomStates) -> None:
    """Restores earlier states."""
    of_python, of_numpy, of_tensorflow = states
    random.setstate(of_python)
    np.random.set_state(of_numpy)
    if of_tensorflow is not None:
        eager, (seed, state) = context.context(), of_tensorflow
        if eager._seed != seed:
            tf.random.set_seed(seed)
        eager._rng.setstate(state)
