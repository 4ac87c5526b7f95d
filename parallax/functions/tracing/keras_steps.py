"""Prepares the trace of a step that uses Keras 3: its optimizers see coalesced rows, and its variables are named.

Optimizers are found in the step itself, whatever their origin, when they are first applied. A variable is named by the
path that Keras gives it, and a slot by a path below its variable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager

import tensorflow as tf
from keras.src import backend
from keras.src.backend.common.variables import Variable as BackendVariable
from keras.src.layers.layer import Layer
from keras.src.optimizers.base_optimizer import BaseOptimizer

from parallax.base.types import Argument, Gradient, KerasOptimizer, KerasVariable, TensorLike, Variable
from parallax.functions.tracing.batch_norm_setting import normalizations_of_keras
from parallax.functions.tracing.keras_optimizers import leaving_rows_unmerged, merging_rows, reading_by_row
from parallax.functions.tracing.layer_marks import mark_layers
from parallax.functions.tracing.trace_step import LibraryVariable


@contextmanager
def record_use(merges_rows: bool) -> Iterator[Callable[[], dict[int, LibraryVariable]]]:
    """A context that records the Keras variables and optimizers that are used.

    Args:
        merges_rows: whether equal rows of sparse gradients are summed before an optimizer sees them.

    Returns:
        In a context: a function that returns, by the id of a tf.Variable, Keras's information on it.
    """
    used: dict[int, KerasVariable] = {}
    made: list[KerasVariable] = []
    with _recording_reads(used), record_optimizers(merges_rows, made) as optimizers:
        yield lambda: _collect_variables(used, list(optimizers.values()), {id(one._value) for one in made})


@contextmanager
def record_optimizers(
    merges_rows: bool, made: list[KerasVariable] | None = None
) -> Iterator[dict[int, KerasOptimizer]]:
    """A context that records applied optimizers by their ids, whatever their origin.

    Args:
        merges_rows: whether equal rows of sparse gradients are summed before an optimizer sees them.
        made: a list to which created variables are added.
    """
    optimizers: dict[int, KerasOptimizer] = {}
    with ExitStack() as stack:
        stack.enter_context(reading_by_row())
        stack.enter_context(normalizations_of_keras())
        stack.enter_context(mark_layers(Layer))
        stack.enter_context(_creating_eagerly([] if made is None else made))
        for kind in _kinds_with_apply(BaseOptimizer):
            stack.enter_context(
                _recording_applies(kind, optimizers, stack, merging_rows if merges_rows else leaving_rows_unmerged)
            )
        yield optimizers


def build_in_trace(optimizer: KerasOptimizer, variables: Sequence[KerasVariable]) -> None:
    """Builds an optimizer as the first trace of a step does.

    TensorFlow traces a step that creates variables twice and runs the second trace. Hence of `build` only the creation
    of variables has an effect; values that it assigns to them are lost.
    """
    with tf.init_scope():
        tf.function(lambda: optimizer.build(variables), autograph=False).get_concrete_function()


def slot_name(path: str, trained: list[KerasVariable]) -> str:
    """The name of an optimizer's variable: a slot's is below its variable; others are unchanged.

    TF1's optimizers use the same scheme: `emb/embeddings/adam/momentum`.
    """
    optimizer, _, slot = path.partition("/")
    by_head = {_head(one): getattr(one, "path", one.name.split(":")[0]) for one in trained}
    for head in sorted(by_head, key=len, reverse=True):
        if slot.startswith(head):
            return f"{by_head[head]}/{optimizer}/{slot.removeprefix(head)}"
    return path


def _head(variable: KerasVariable) -> str:
    """The prefix of Keras's names of a variable's slots; a tf.Variable has a name with a number, and no path."""
    path = getattr(variable, "path", variable.name.replace(":", "_"))
    return f"{path.replace('/', '_')}_"


@contextmanager
def _creating_eagerly(made: list[KerasVariable]) -> Iterator[None]:
    """A context in which variables created by a trace get their values at once, as TensorFlow else traces twice.

    The values are those of the initializers, wherever they are called.

    Args:
        made: a list to which the variables are added.
    """
    original = backend.Variable._initialize_with_initializer

    def initialize(self: KerasVariable, initializer: Callable[..., TensorLike]) -> None:
        with tf.init_scope(), tf.variable_creator_scope(_eager_variable):
            original(self, initializer)
        made.append(self)

    backend.Variable._initialize_with_initializer = initialize
    try:
        yield
    finally:
        backend.Variable._initialize_with_initializer = original


def _eager_variable(next_creator: Callable[..., Variable], **kwargs: Argument) -> Variable:
    """A variable whose initializer runs now and is not lifted out of a trace."""
    return next_creator(**{**kwargs, "experimental_enable_variable_lifting": False})


@contextmanager
def _recording_reads(used: dict[int, KerasVariable]) -> Iterator[None]:
    original = BackendVariable.value

    def value(self: KerasVariable) -> TensorLike:
        found = original.fget(self)
        used[id(self._value)] = self
        return found

    BackendVariable.value = property(value)
    try:
        yield
    finally:
        BackendVariable.value = original


def _kinds_with_apply(kind: type[KerasOptimizer]) -> list[type]:
    """The optimizer classes that define `apply`."""
    kinds = [kind] if "apply" in vars(kind) else []
    for derived in kind.__subclasses__():
        kinds += _kinds_with_apply(derived)
    return list(dict.fromkeys(kinds))


@contextmanager
def _recording_applies(
    kind: type[KerasOptimizer],
    optimizers: dict[int, KerasOptimizer],
    stack: ExitStack,
    seeing: Callable[[KerasOptimizer], AbstractContextManager[None]],
) -> Iterator[None]:
    original = kind.apply

    def apply(
        self: KerasOptimizer, gradients: Sequence[Gradient], trainable_variables: Sequence[KerasVariable] | None = None
    ) -> object:
        is_inner = any(self is one for outer in optimizers.values() for one in _within(outer))
        if id(self) in optimizers or is_inner:
            return original(self, gradients, trainable_variables)
        optimizers[id(self)] = self
        if trainable_variables is not None and not self.built:
            build_in_trace(self, list(trainable_variables))
        stack.enter_context(seeing(self))
        return self.apply(gradients, trainable_variables)

    kind.apply = apply
    try:
        yield
    finally:
        kind.apply = original


def _within(optimizer: KerasOptimizer) -> list[KerasOptimizer]:
    """The optimizers that one calls."""
    inner = [getattr(optimizer, "inner_optimizer", None), *getattr(optimizer, "optimizers", ())]
    return [one for one in inner if one is not None]


def _collect_variables(
    used: dict[int, KerasVariable], optimizers: list[KerasOptimizer], made: set[int]
) -> dict[int, LibraryVariable]:
    variable_by_id = {
        key: LibraryVariable(one.path, bool(one.trainable), key in made, key in made) for key, one in used.items()
    }
    for optimizer in optimizers:
        trained = list(getattr(optimizer, "_trainable_variables", ()))
        for one in optimizer.variables:
            name, key = slot_name(one.path, trained), id(getattr(one, "_value", one))
            variable_by_id[key] = LibraryVariable(name, False, is_new=key in made)
    return variable_by_id
