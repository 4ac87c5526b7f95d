"""Replaces arrays that `fit` splits into batches with row numbers.

Keras shuffles and batches the row numbers as it would the arrays, and a worker reads only its own rows of the arrays.
Inputs that are not plain arrays (a dataset, pandas tables, sparse matrices) are handled by Keras itself.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from parallax.base.types import Argument, Array, KerasModel, Nest, TensorLike, TypeSpec
from parallax.functions.batches.numbered_rows import NumberedArrays
from parallax.functions.batches.shared_arrays import SharedArrays
from parallax.keras.inputs import ROW_NUMBERS, parts_of, row_numbers
from parallax.keras.libraries import library_of

_NUMERIC = "biuf"


def index_input(
    model: KerasModel, arguments: dict[str, Argument], spec: Nest, which: str = "train"
) -> NumberedArrays | None:
    """Replaces arrays that are passed to a call with row numbers; returns None where they are not plain arrays.

    Args:
        model: the model of the call.
        arguments: of the call by name, which are modified.
        spec: of a batch.
        which: the step that reads them.
    """
    y, weights = arguments.get("y"), arguments.get("sample_weight")
    if arguments.get("class_weight") is not None and isinstance(y, np.ndarray):
        weights = np.asarray(library_of(model).weights_of_classes(y, arguments["class_weight"]))
    shared = _arrays((arguments.get("x"), y, weights), spec)
    if shared is None:
        return None
    arguments.update({name: None for name in ("y", "sample_weight", "class_weight") if name in arguments})
    arguments["x"] = _numbers(which, shared)
    return NumberedArrays(shared)


def index_validation(model: KerasModel, arguments: dict[str, Argument], spec: Nest) -> NumberedArrays | None:
    """Replaces the validation data of `fit` by row numbers, as `index_input` does."""
    shared = _arrays(library_of(model).unpacked(arguments["validation_data"]), spec)
    if shared is None:
        return None
    arguments["validation_data"] = (_numbers("test", shared),)
    return NumberedArrays(shared)


def find_row_numbers(batch: Nest, which: str) -> Array | None:
    """The row numbers, [n], in a batch of Keras's; None for any other batch.

    Args:
        batch: as returned by Keras's dataset.
        which: the name of a step.
    """
    numbers = row_numbers(batch[0] if isinstance(batch, tuple) and len(batch) == 1 else batch, which)
    return None if numbers is None else np.asarray(numbers)


def _numbers(which: str, shared: SharedArrays) -> dict[str, Array]:
    return {ROW_NUMBERS + which: np.arange(len(shared.arrays[0]))}


def _arrays(data: tuple[Nest, Nest, Nest], spec: Nest) -> SharedArrays | None:
    """Copies of the arrays, in the types of a batch; later changes of the script's own do not affect batches."""
    parts, specs = parts_of(data), [one for one in tf.nest.flatten(spec) if one is not None]
    if len(parts) != len(specs) or not all(map(_is_plain, parts, specs)):
        return None
    if len({len(part) for part in parts}) != 1 or not len(parts[0]):
        return None
    return SharedArrays.copy_of(parts, [one.dtype.as_numpy_dtype for one in specs])


def _is_plain(part: TensorLike, spec: TypeSpec) -> bool:
    if type(part) is not np.ndarray or not isinstance(spec, tf.TensorSpec) or part.dtype.kind not in _NUMERIC:
        return False
    dtype, has = tf.as_dtype(part.dtype), spec.dtype
    is_same_kind = dtype == has or (dtype.is_floating and has.is_floating)
    return is_same_kind and part.ndim > 0 and spec.shape[1:].is_compatible_with(part.shape[1:])
