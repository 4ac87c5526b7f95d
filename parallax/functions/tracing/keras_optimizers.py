"""Makes Keras's optimizers see coalesced sparse gradients while a step is traced, with the results of dense gradients.

Keras leaves equal rows of a gradient uncoalesced, so squares and moments are of parts and not of the sum, and its
results for slices sometimes differ from those for a dense gradient. Here equal rows are summed before the update, which
is also where an owner combines the rows of several workers, and the update sees a dense gradient: zeros except in those
rows. SGD and Adagrad, which leave rows with zeros unchanged, and optimizers that declare row-wise updates see the rows
alone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import keras
import tensorflow as tf
from keras.src.backend.tensorflow import numpy

from parallax.base.types import (
    Gradient,
    KerasOptimizer,
    KerasVariable,
    LearningRate,
    Nest,
    Tensor,
    TensorLike,
    Variable,
)


@contextmanager
def merging_rows(optimizer: KerasOptimizer) -> Iterator[None]:
    """A context in which `optimizer.apply` gives sparse gradients the results of dense ones.

    Args:
        optimizer: a Keras optimizer, built.
    """
    rows: dict[Hashable, Tensor] = {}
    rates: dict[Hashable, Tensor] = {}
    apply = optimizer.apply

    def merging(gradients: Sequence[Gradient], trainable_variables: Sequence[KerasVariable] | None = None) -> object:
        variables = optimizer._trainable_variables if trainable_variables is None else list(trainable_variables)
        merged = [_merge(optimizer, g, v, rows) for g, v in zip(gradients, variables, strict=True)]
        rates.clear()  # it may have been assigned since the last call
        return apply(merged, trainable_variables)

    with ExitStack() as stack:
        stack.enter_context(_replace_method(optimizer, "apply", merging))
        for updating in _updating(optimizer):
            stack.enter_context(_replace_method(updating, "_all_reduce_sum_gradients", _skip_replica_sum))
            if _row_update(updating) is not None:
                stack.enter_context(_replace_method(updating, "update_step", _by_row(updating, rows, rates)))
        yield


@contextmanager
def reading_by_row() -> Iterator[None]:
    """A context in which Keras reads a sparse gradient's own rows where it would otherwise read a whole table.

    A division by a full tensor uses the rows that the gradient has; Keras first searches all rows for zeros, from which
    it would make rows of NaN where the gradient has none. The check for finite values covers all rows; Keras checks the
    last one of equal rows.
    """
    divide, isfinite = numpy.divide, numpy.isfinite

    def divide_rows(x1: TensorLike, x2: TensorLike) -> TensorLike:
        has_rows = isinstance(x1, tf.IndexedSlices) and not isinstance(x2, tf.IndexedSlices)
        if not has_rows or not len(getattr(x2, "shape", ())):
            return divide(x1, x2)
        rows = tf.gather(tf.convert_to_tensor(x2), x1.indices)
        return tf.IndexedSlices(divide(x1.values, rows), x1.indices, x1.dense_shape)

    def are_finite(x: TensorLike) -> TensorLike:
        return isfinite(x.values if isinstance(x, tf.IndexedSlices) else x)

    numpy.divide, numpy.isfinite = divide_rows, are_finite
    try:
        yield
    finally:
        numpy.divide, numpy.isfinite = divide, isfinite


@contextmanager
def leaving_rows_unmerged(optimizer: KerasOptimizer) -> Iterator[None]:
    """A context in which `optimizer.apply` gives sparse gradients the results of plain Keras.

    Args:
        optimizer: a Keras optimizer, built.
    """
    with ExitStack() as stack:
        for updating in _updating(optimizer):
            stack.enter_context(_replace_method(updating, "_all_reduce_sum_gradients", _skip_replica_sum))
        yield


@contextmanager
def _replace_method(optimizer: KerasOptimizer, method: str, by: Callable[..., object]) -> Iterator[None]:
    """Replaces a method of one optimizer, bypassing Keras's attribute tracking."""
    object.__setattr__(optimizer, method, by)
    try:
        yield
    finally:
        object.__delattr__(optimizer, method)


def _skip_replica_sum(gradients_and_variables: Nest) -> Nest:
    """Replaces the sum over replicas, of which there is one: its op would read all gradients, and is on one server."""
    return gradients_and_variables


def _updating(optimizer: KerasOptimizer) -> list[KerasOptimizer]:
    """The optimizers that update variables: the inner ones of this optimizer, or itself."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return _updating(optimizer.inner_optimizer)
    several = getattr(keras.optimizers, "MultiOptimizer", None)  # since Keras 3.15
    return list(optimizer.optimizers) if several and isinstance(optimizer, several) else [optimizer]


def _find_updating_optimizer(optimizer: KerasOptimizer, variable: KerasVariable) -> KerasOptimizer:
    """The one of `_updating` that updates a variable."""
    candidates = _updating(optimizer)
    return candidates[0] if len(candidates) == 1 else next(one for one in candidates if _has_variable(one, variable))


def _has_variable(optimizer: KerasOptimizer, variable: KerasVariable) -> bool:
    return any(known is variable for known in optimizer._trainable_variables)


def _merge(
    optimizer: KerasOptimizer, gradient: Gradient, variable: KerasVariable, rows: dict[Hashable, Tensor]
) -> Gradient:
    """A dense gradient unchanged; IndexedSlices as a dense one, or as the values of its rows, recorded in `rows`."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    touched, places = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, places, tf.shape(touched)[0])
    updating = _find_updating_optimizer(optimizer, variable)
    if _row_update(updating) is not None and not updating.gradient_accumulation_steps:
        tf_variable: Variable = (
            variable._value if hasattr(variable, "_value") else variable
        )  # of Keras, or a tf.Variable
        rows[tf_variable.ref()] = touched
        return values  # scaling and clipping have the same result as on the dense gradient
    return tf.math.unsorted_segment_sum(values, touched, variable.shape[0])


def _by_row(
    optimizer: KerasOptimizer, rows: dict[Hashable, Tensor], rates: dict[Hashable, Tensor]
) -> Callable[[Tensor, Variable, LearningRate], None]:
    """The optimizer's `update_step`, which reads values of rows for the variables in `rows`.

    The learning rate is read once for all tables, and cached in `rates`.
    """
    update_step, by_row = optimizer.update_step, _row_update(optimizer)

    def update(gradient: Tensor, variable: Variable, learning_rate: LearningRate) -> None:
        touched = rows.get(variable.ref())
        if touched is None or by_row is None:
            update_step(gradient, variable, learning_rate)
        else:
            key = tf.compat.v1.get_default_graph(), id(optimizer), variable.dtype
            if key not in rates:
                rates[key] = tf.cast(learning_rate, variable.dtype)
            by_row(optimizer, gradient, touched, variable, rates[key])

    return update


def _row_update(optimizer: KerasOptimizer) -> Callable[[KerasOptimizer, Tensor, Tensor, Variable, Tensor], None] | None:
    """The function by which an optimizer updates some rows and leaves rows without a gradient unchanged, if any.

    An optimizer declares this by a method `update_rows` (parallax/optimizers/of_keras.py). A subclass of Keras's
    optimizers may behave otherwise, so it is excluded.
    """
    update_rows: Callable[[KerasOptimizer, Tensor, Tensor, Variable, Tensor], None] | None = getattr(
        type(optimizer), "update_rows", None
    )
    if update_rows is not None:
        return update_rows
    if type(optimizer) is keras.optimizers.SGD and not optimizer.momentum:
        return _sgd
    return _adagrad if type(optimizer) is keras.optimizers.Adagrad else None


def _sgd(optimizer: KerasOptimizer, values: Tensor, rows: Tensor, variable: Variable, rate: Tensor) -> None:
    variable.scatter_sub(tf.IndexedSlices(tf.cast(values, variable.dtype) * rate, rows))


def _adagrad(optimizer: KerasOptimizer, values: Tensor, rows: Tensor, variable: Variable, rate: Tensor) -> None:
    """Adagrad's `update_step` for rows; the original computes the root of the full accumulator."""
    values = tf.cast(values, variable.dtype)
    accumulator = optimizer._accumulators[optimizer._get_variable_index(variable)]._value
    accumulator.scatter_add(tf.IndexedSlices(tf.square(values), rows))
    root = tf.sqrt(tf.gather(accumulator, rows) + optimizer.epsilon)
    variable.scatter_sub(tf.IndexedSlices(rate * values / root, rows))
