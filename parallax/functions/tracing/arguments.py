"""The arguments of a call of a step, interpreted as `tf.function` interprets them.

An argument is a tensor, whose first dimension is the batch, a scalar tensor, or any other Python value, which is a
constant of the trace. An argument with a spec in an input signature is a tensor.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import tensorflow as tf
from tensorflow.python.util import nest

from parallax.base.errors import ConfigError, GraphError
from parallax.base.types import Argument, Nest, Tensor, TensorLike, TypeSpec

_NO_SIGNATURE = (
    "input_signature must be a list or tuple of tf.TensorSpec or tf.RaggedTensorSpec, one for each argument of the "
    "step, got {given!r}."
)
_OTHER_COUNT = (
    "The input_signature of the step is {signature}, but this call has {given}. Pass each tensor by position or by "
    "name, and give other parameters defaults."
)
_OTHER_VALUE = "The input_signature of the step requires {spec}, but this call has {given}. Change one of them."


@dataclass(frozen=True, slots=True)
class Arguments:
    """The parsed arguments of a call.

    Attributes:
        structure: all of them, (args, kwargs).
        specs: of the tensors, flat; the first dimension is open.
        tensors: flat, tensors and arrays.
        others: the values between the tensors: None in place of tensors.
    """

    structure: Nest
    specs: tuple[TypeSpec, ...]
    tensors: tuple[TensorLike, ...]
    others: tuple[object, ...]


def check_signature(signature: Sequence[TypeSpec] | None) -> None:
    """Refuses an invalid input signature.

    Raises:
        ConfigError: it is not a list or tuple of specs.
    """
    kinds = tf.TensorSpec | tf.RaggedTensorSpec
    is_list = isinstance(signature, list | tuple)
    if signature is not None and not (is_list and all(isinstance(one, kinds) for one in tf.nest.flatten(signature))):
        raise ConfigError(_NO_SIGNATURE.format(given=signature))


def bind_arguments(
    function: Callable[..., Nest], args: Sequence[Argument], kwargs: dict[str, Argument]
) -> tuple[list[Argument], dict[str, Argument]]:
    """The arguments of a call bound to the function's parameters, so that positional and keyword calls are equal.

    Defaults are included, except tensors, which belong to no batch.

    Args:
        function: a Python function.
        args: by position.
        kwargs: by name.

    Raises:
        TypeError: the function has other parameters.
    """
    try:
        signature = inspect.signature(function)
    except ValueError:  # a builtin without a signature
        return list(args), dict(kwargs)
    bound = signature.bind(*args, **kwargs)
    defaults = {name: one.default for name, one in signature.parameters.items() if one.default is not one.empty}
    plain = {name: value for name, value in defaults.items() if not _has_tensors(value)}
    whole = {**plain, **bound.arguments}
    bound.arguments = {name: whole[name] for name in signature.parameters if name in whole}
    return list(bound.args), dict(bound.kwargs)


def arguments_of(
    args: Sequence[Argument], kwargs: dict[str, Argument], signature: Sequence[TypeSpec] | None = None
) -> Arguments:
    """Parses the arguments of a call.

    Args:
        args: by position.
        kwargs: by name.
        signature: specs of the first args, which are converted to tensors and may have more open dimensions than the
            batch; None for no signature.

    Raises:
        GraphError: an argument is a tensor without rows to split, a sparse one, or one that the signature does not
            allow.
    """
    flat_arguments, wider = (list(args), []) if signature is None else _apply_signature(list(args), list(signature))
    structure = (flat_arguments, dict(kwargs))
    flat = tf.nest.flatten(structure)
    tensors, specs, others = [], [], []
    for number, one in enumerate(flat):
        if not _is_tensor(one):
            others.append(one)
            continue
        others.append(None)
        tensors.append(one)
        specs.append(_spec_of(one, wider[number] if number < len(wider) else None))
    return Arguments(structure, tuple(specs), tuple(tensors), tuple(others))


def with_tensors(structure: Nest, tensors: Sequence[Tensor]) -> Nest:
    """The arguments with their tensors replaced.

    Args:
        structure: of `Arguments`.
        tensors: the replacements, flat.
    """
    waiting = iter(tensors)
    flat = [next(waiting) if _is_tensor(one) else one for one in tf.nest.flatten(structure)]
    return tf.nest.pack_sequence_as(structure, flat)


def without_values(arguments: Arguments) -> Arguments:
    """A copy without tensors, for `are_alike`."""
    return replace(arguments, structure=_structure_of(arguments), tensors=())


def with_lengths(arguments: Arguments) -> Arguments | None:
    """The arguments with the lengths of their batches in the specs; None without one, or where a tensor is ragged."""
    if any(isinstance(one, tf.RaggedTensor) for one in arguments.tensors):
        return None
    if not any(len(one.shape) for one in arguments.tensors):
        return None
    pairs = zip(arguments.specs, arguments.tensors, strict=True)
    return replace(arguments, specs=tuple(tf.TensorSpec(one.shape, spec.dtype) for spec, one in pairs))


def are_alike(known: Arguments, passed: Arguments) -> bool:
    """Whether a trace for some arguments also serves others.

    Args:
        known: a result of `without_values`.
        passed: of another call.
    """
    if len(known.specs) != len(passed.specs) or known.structure != _structure_of(passed):
        return False
    fits = all(own.is_compatible_with(other) for own, other in zip(known.specs, passed.specs, strict=True))
    return fits and all(_is_equal(*pair) for pair in zip(known.others, passed.others, strict=True))


def arguments_text(arguments: Arguments) -> str:
    """A one-line description of arguments: the types and shapes of tensors, and other values."""
    others = [repr(one)[:40] for one in arguments.others if one is not None]
    return ", ".join([*_spec_texts(arguments.specs), *others]) or "no arguments"


def _structure_of(arguments: Arguments) -> Nest:
    """The structure of arguments, without their values."""
    return tf.nest.map_structure(_is_tensor, arguments.structure)


def _apply_signature(args: list[Argument], signature: list[TypeSpec]) -> tuple[list[Argument], list[TypeSpec]]:
    """The arguments of a call with the tensors required by a signature, and the specs of these, flat."""
    count = len(signature)
    specs = tf.nest.flatten(signature)
    try:
        flat = nest.flatten_up_to(signature, args[:count], check_types=False)
    except (TypeError, ValueError) as error:
        raise GraphError(_OTHER_VALUE.format(spec=signature, given=repr(args[:count])[:200])) from error
    if _has_tensors(args[count:]):
        passed_text = arguments_text(arguments_of(args, {}))
        raise GraphError(_OTHER_COUNT.format(signature=_specs_text(specs), given=passed_text))
    tensors = [_convert_to_spec(one, spec) for one, spec in zip(flat, specs, strict=True)]
    return [*tf.nest.pack_sequence_as(signature, tensors), *args[count:]], specs


def _convert_to_spec(one: Argument, spec: TypeSpec) -> TensorLike:
    """An argument converted to the tensor or array that a spec requires."""
    is_array = isinstance(one, np.ndarray) and one.dtype == spec.dtype.as_numpy_dtype
    if isinstance(spec, tf.TensorSpec) and not is_array and not isinstance(one, tf.Tensor):
        try:
            one = tf.convert_to_tensor(one, spec.dtype)
        except (TypeError, ValueError) as error:
            raise GraphError(_OTHER_VALUE.format(spec=spec, given=repr(one)[:80])) from error
    passed_spec = tf.type_spec_from_value(one)
    if not spec.is_compatible_with(passed_spec):
        raise GraphError(_OTHER_VALUE.format(spec=spec, given=passed_spec))
    return one


def _is_tensor(one: object) -> bool:
    return isinstance(one, tf.Tensor | tf.RaggedTensor | tf.SparseTensor | np.ndarray | np.generic)


def _has_tensors(structure: Nest) -> bool:
    return any(map(_is_tensor, tf.nest.flatten(structure)))


def _spec_of(one: TensorLike, wider: TypeSpec | None) -> TypeSpec:
    if isinstance(one, tf.SparseTensor):
        raise GraphError(
            f"Each worker takes rows of the arguments of a step, but {tf.type_spec_from_value(one)} is sparse. Make "
            "it dense (tf.sparse.to_dense) or ragged (tf.RaggedTensor.from_sparse) in the input pipeline."
        )
    if isinstance(one, tf.RaggedTensor):
        return tf.RaggedTensorSpec([None, *one.shape[1:]], one.dtype, one.ragged_rank, one.row_splits.dtype)
    shape = [None, *one.shape[1:]] if len(one.shape) else []
    if wider is not None and wider.shape.rank == len(shape):
        shape = [None, *wider.shape[1:]] if shape else []
    return tf.TensorSpec(shape, tf.as_dtype(one.dtype))


def _is_equal(one: object, other: object) -> bool:
    return one is other or (type(one) is type(other) and isinstance(one, str | int | float | bool) and one == other)


def _specs_text(specs: Sequence[TypeSpec]) -> str:
    return ", ".join(_spec_texts(specs)) or "no arguments"


def _spec_texts(specs: Sequence[TypeSpec]) -> list[str]:
    return [f"{spec.dtype.name}{list(spec.shape)}" for spec in specs]
