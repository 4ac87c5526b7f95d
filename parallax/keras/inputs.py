"""The specs of batches for which a model's steps are traced, and the parts of a batch that Keras's steps read."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf

from parallax.base.errors import GraphError
from parallax.base.types import Argument, Nest, TensorLike, TypeSpec

ROW_NUMBERS = "parallax_row_numbers_of_"
"""Prefix of the name of a step whose inputs are row numbers, as passed to Keras (arrays.py)."""
_OF_ARRAYS = 32
"""The default batch size of `fit` for arrays."""


def open_spec(spec: Nest) -> Nest:
    """The spec of a batch of any length.

    Args:
        spec: the structure of a dataset's elements, of tf.TensorSpec or None; an Optional becomes None.

    Raises:
        GraphError: an element has no rows.
    """
    return tf.nest.map_structure(_open, spec)


def is_compatible(spec: Nest, traced: Nest) -> bool:
    """Whether batches of a spec may be passed to a step that was traced for another.

    Args:
        spec: of the batches.
        traced: of the step.
    """
    try:
        tf.nest.assert_same_structure(traced, spec)
    except (TypeError, ValueError):
        return False
    pairs = zip(tf.nest.flatten(traced), tf.nest.flatten(spec), strict=True)
    return all(one is other or (one is not None and one.is_compatible_with(other)) for one, other in pairs)


def _open(spec: TypeSpec | None) -> TypeSpec | None:
    if spec is None or isinstance(spec, tf.OptionalSpec):
        return None
    if isinstance(spec, tf.RaggedTensorSpec):
        return tf.RaggedTensorSpec([None, *spec.shape[1:]], spec.dtype, spec.ragged_rank, spec.row_splits_dtype)
    if not isinstance(spec, tf.TensorSpec):
        raise GraphError(
            f"Batches must consist of dense or ragged tensors, which have rows that workers can share, got {spec}. "
            "Make it dense (tf.sparse.to_dense) or ragged (tf.RaggedTensor.from_sparse) in the input pipeline."
        )
    if not spec.shape.rank:
        raise GraphError(
            f"The first dimension of every tensor in a batch must be the batch dimension, got {spec}. Batch the "
            "dataset."
        )
    return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype, spec.name)


def parts_of(batch: Nest) -> list[TensorLike]:
    """The flat tensors of a batch, as Keras's steps read them, without Optionals."""
    return [one for one in tf.nest.flatten(batch) if one is not None and not isinstance(one, tf.experimental.Optional)]


def row_numbers(x: Nest, which: str = "") -> TensorLike | None:
    """The row numbers in an input of Keras's; None for any other input.

    Args:
        x: the input, or a batch of it.
        which: "train" or "test"; empty for both.
    """
    names = [name for name in x if str(name).startswith(ROW_NUMBERS + which)] if isinstance(x, dict) else []
    return x[names[0]] if names else None


def batch_length(x: Nest, batch_size: int | None) -> int:
    """The number of examples in the batches of `fit`'s argument, if it is known before one is read; else 0.

    Args:
        x: arrays, which Keras splits into batches, or a source of batches.
        batch_size: the argument of `fit`.
    """
    dataset = x
    while isinstance(dataset, tf.data.Dataset):
        if hasattr(dataset, "_batch_size"):
            return int(dataset._batch_size)
        dataset = getattr(dataset, "_input_dataset", None)
    if isinstance(x, tf.data.Dataset):
        first = tf.nest.flatten(x.element_spec)[0].shape
        return int(first[0] or 0) if first.rank else 0
    parts = tf.nest.flatten(x)
    if parts and all(hasattr(part, "shape") and len(part.shape) for part in parts):
        return min(batch_size or _OF_ARRAYS, int(parts[0].shape[0]))
    return 0


def input_of(arguments: Mapping[str, Argument]) -> list[Argument]:
    """The training and validation data of a call of `fit` or `train_on_batch`.

    Args:
        arguments: of the call by name.
    """
    return [arguments.get(name) for name in ("x", "y", "sample_weight", "validation_data")]


def count_examples(x: Nest, batch_size: int | None) -> int:
    """The number of examples in an input, if it is known before it is read; else 0.

    Args:
        x: arrays, or a source of batches.
        batch_size: the argument of Keras.
    """
    if isinstance(x, tf.data.Dataset):
        return max(int(x.cardinality()), 0) * batch_length(x, batch_size)
    parts = tf.nest.flatten(x)
    return int(parts[0].shape[0]) if parts and all(len(getattr(part, "shape", ())) for part in parts) else 0
