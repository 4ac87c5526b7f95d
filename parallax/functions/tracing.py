"""A step of the script as TensorFlow traces it for batches of any length, with a name for each variable that it takes.

An argument is a tensor, whose first dimension is the batch, a scalar tensor, or anything else of Python, which is a
constant of the trace, as in a `tf.function`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable

from parallax.errors import GraphError
from parallax.functions.counting import check_returned, check_sums
from parallax.functions.libraries import Seen, libraries_seen
from parallax.functions.results import marked_means
from parallax.functions.step_graph import StepVariable
from parallax.functions.traced import handle_of
from parallax.types import Argument, ConcreteFunction, Handle, Nest, Tensor, TensorLike, TypeSpec, Variable

_OTHER_ARGUMENTS = (
    "A step runs in a graph that was made at its first call, for {known}, and this call has {given}. Pass what changes "
    "as a tensor, and leave open what may have another length: tf.function(step, input_signature=[tf.TensorSpec([None, "
    "None], tf.int64), ...])."
)


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of a call, read.

    Attributes:
        structure: all of them, (args, kwargs).
        specs: of the tensors, flat; the first dimension is open.
        tensors: flat, tensors and arrays.
        others: what stands between the tensors: None in their places.
    """

    structure: Nest
    specs: tuple[TypeSpec, ...]
    tensors: tuple[TensorLike, ...]
    others: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class StepTrace:
    """A step as TensorFlow traced it.

    Attributes:
        concrete: takes the tensors of the arguments, flat.
        variables: that it takes, each with a name of its own.
    """

    concrete: ConcreteFunction
    variables: tuple[StepVariable, ...]


def arguments_of(
    args: Sequence[Argument], kwargs: dict[str, Argument], signature: Sequence[TypeSpec] | None = None
) -> Arguments:
    """Reads the arguments of a call.

    Args:
        args: by position.
        kwargs: by name.
        signature: specs of args that leave more open than the batch; None for none.

    Raises:
        GraphError: an argument is a tensor that has no rows to part: a sparse one.
    """
    structure = (list(args), dict(kwargs))
    flat = tf.nest.flatten(structure)
    wider = tf.nest.flatten(list(signature)) if signature is not None else []
    tensors, specs, others = [], [], []
    for number, one in enumerate(flat):
        if not _is_tensor(one):
            others.append(one)
            continue
        others.append(None)
        tensors.append(one)
        specs.append(_spec_of(one, wider[number] if number < len(wider) else None))
    return Arguments(structure, tuple(specs), tuple(tensors), tuple(others))


def traced_step(
    step: Callable[..., Nest], arguments: Arguments, merges_rows: bool = True, returns: Nest = None
) -> StepTrace:
    """Traces a step.

    Args:
        step: a Python function, or a `tf.function`.
        arguments: of its first call.
        merges_rows: whether equal rows of sparse gradients are added up before an optimizer sees them.
        returns: what the script says of its results (results.py).

    Raises:
        GraphError: it writes a metric's variable otherwise than by adding to it, or returns what is computed of one.
    """
    python_function = getattr(step, "python_function", step)

    def call(*tensors: Tensor) -> Nest:
        args, kwargs = _with_tensors(arguments.structure, tensors)
        return marked_means(python_function(*args, **kwargs), returns)

    with libraries_seen(merges_rows) as seen, _handles_noted() as by_handle:
        concrete = tf.function(call).get_concrete_function(*arguments.specs)
        taken = _taken(concrete, by_handle)
        parts = [one for one in taken if one.aggregation == tf.VariableAggregation.SUM]
        check_sums(concrete, parts)
        check_returned(concrete, parts)
        return StepTrace(concrete, tuple(_named(taken, seen())))


def _with_tensors(structure: Nest, tensors: Sequence[Tensor]) -> Nest:
    """The arguments with other tensors."""
    waiting = iter(tensors)
    flat = [next(waiting) if _is_tensor(one) else one for one in tf.nest.flatten(structure)]
    return tf.nest.pack_sequence_as(structure, flat)


def check_same(known: Arguments, given: Arguments) -> None:
    """Refuses arguments for which a step was not traced.

    Raises:
        GraphError: they differ from those of the first call.
    """
    texts = [_text(one) for one in (known, given)]
    fits = len(known.specs) == len(given.specs) and all(
        own.is_compatible_with(other) for own, other in zip(known.specs, given.specs, strict=True)
    )
    others = [one.others for one in (known, given)]
    if not fits or len(others[0]) != len(others[1]) or any(not _is_equal(*pair) for pair in zip(*others, strict=True)):
        raise GraphError(_OTHER_ARGUMENTS.format(known=texts[0], given=texts[1]))


def _is_tensor(one: object) -> bool:
    return isinstance(one, tf.Tensor | tf.RaggedTensor | tf.SparseTensor | np.ndarray | np.generic)


def _spec_of(one: TensorLike, wider: TypeSpec | None) -> TypeSpec:
    if isinstance(one, tf.SparseTensor):
        raise GraphError(
            f"Each worker takes rows of the arguments of a step, and {tf.type_spec_from_value(one)} is sparse. Make it "
            "dense (tf.sparse.to_dense) or ragged (tf.RaggedTensor.from_sparse) in the input."
        )
    if isinstance(one, tf.RaggedTensor):
        return tf.RaggedTensorSpec([None, *one.shape[1:]], one.dtype, one.ragged_rank, one.row_splits.dtype)
    shape = [None, *one.shape[1:]] if len(one.shape) else []
    if wider is not None and wider.shape.rank == len(shape):
        shape = [None, *wider.shape[1:]] if shape else []
    return tf.TensorSpec(shape, tf.as_dtype(one.dtype))


@contextmanager
def _handles_noted() -> Iterator[dict[int, Variable]]:
    """Within it, variables are noted by the id of their handle when somebody asks for it.

    TensorFlow's trace lists those that are read, and not those that an op of an optimizer updates in place.
    """
    found: dict[int, Variable] = {}
    own = BaseResourceVariable.handle

    def handle(self: Variable) -> Handle:
        tensor = own.fget(self)
        found[id(tensor)] = self
        return tensor

    BaseResourceVariable.handle = property(handle)
    try:
        yield found
    finally:
        BaseResourceVariable.handle = own


def _taken(concrete: ConcreteFunction, by_handle: dict[int, Variable]) -> list[Variable]:
    """The variables that a traced function takes, in the order in which it first does."""
    by_handle = {**by_handle, **{id(handle_of(variable)): variable for variable in concrete.graph.variables}}
    return [by_handle[id(outer)] for outer, _ in concrete.graph.captures if id(outer) in by_handle]


def _named(variables: Sequence[Variable], seen: dict[int, Seen]) -> list[StepVariable]:
    found, taken = [], set()
    for one in variables:
        known = seen.get(id(one), Seen(one.name.split(":")[0], bool(one.trainable)))
        name, number = known.name, 0
        while name in taken:  # variables of nested models, and unnamed ones, may share a name
            number += 1
            name = f"{known.name}_{number}"
        taken.add(name)
        found.append(StepVariable(one, name, known.trainable))
    return found


def _is_equal(one: object, other: object) -> bool:
    return one is other or (type(one) is type(other) and isinstance(one, str | int | float | bool) and one == other)


def _text(arguments: Arguments) -> str:
    others = [repr(one)[:40] for one in arguments.others if one is not None]
    specs = [f"{spec.dtype.name}{list(spec.shape)}" for spec in arguments.specs]
    return ", ".join([*specs, *others]) or "no arguments"
