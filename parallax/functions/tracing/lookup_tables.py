"""Lookup tables that a traced step reads: the contents of static ones are sent with the graph.

A table that was created eagerly, as by a `StringLookup` layer, is in the process of the script. The graph of the step
has its own table instead, with the same keys and values, sorted by key, as a table lists them in another order in each
process.
"""

from __future__ import annotations

import gc

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.ops import lookup_ops
from tensorflow.python.trackable.resource import CapturableResource

from parallax.base.errors import GraphError
from parallax.base.types import Array, DType, Handle, Tensor
from parallax.report.text import bytes_text

_LARGEST_BYTES = 512 << 20
"""Limit for one table's keys and values: TensorFlow sends no graph of 2 GB or more."""
_CHANGEABLE = (lookup_ops.MutableHashTable, lookup_ops.DenseHashTable)
_LOOK_UP_BEFORE = "Or look up in the input pipeline (tf.data's map), which runs before the step."
_MUTABLE = (
    "{step} uses a lookup table whose contents can change (a MutableHashTable or DenseHashTable), and each worker "
    "would have its own copy. Make it static: "
    "tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(*table.export()), default_value). "
) + _LOOK_UP_BEFORE
_EMPTY = (
    "{step} uses a lookup table that is empty. Fill it first: a layer with `adapt` or a vocabulary, a table with its "
    "initializer."
)
_TOO_LARGE = (
    "{step} uses a lookup table of {size}, but the contents of lookup tables are sent with the graph and may have at "
    "most {limit} each. Look up in the input pipeline (tf.data's map), which runs before the step."
)


def table_in_graph(step: str, handle: Handle) -> Tensor | None:
    """The handle of a table in the default graph, with the contents of the eager table.

    Args:
        step: the name of the step that reads the table.
        handle: of the eager table, or any other resource.

    Returns:
        None where the resource is not a lookup table.

    Raises:
        GraphError: the table is mutable, uninitialized, or too large.
    """
    table = _owner_of(handle)
    if isinstance(table, _CHANGEABLE):
        raise GraphError(_MUTABLE.format(step=step))
    if not isinstance(table, lookup_ops.InitializableLookupTableBase):
        return None
    try:
        keys, values = _contents(handle, table.key_dtype, table.value_dtype)
    except tf.errors.FailedPreconditionError as error:
        raise GraphError(_EMPTY.format(step=step)) from error
    size = sum(_bytes_of(one) for one in (keys, values))
    if size > _LARGEST_BYTES:
        raise GraphError(_TOO_LARGE.format(step=step, size=bytes_text(size), limit=bytes_text(_LARGEST_BYTES)))
    made: Tensor = tf.raw_ops.HashTableV2(
        key_dtype=table.key_dtype, value_dtype=table.value_dtype, use_node_name_sharing=True, name="lookup_table"
    )
    filled = tf.raw_ops.InitializeTableV2(
        table_handle=made, keys=tf.constant(keys, table.key_dtype), values=tf.constant(values, table.value_dtype)
    )
    tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.TABLE_INITIALIZERS, filled)
    return made


def _owner_of(handle: Handle) -> object | None:
    """The owner of a resource's handle: TensorFlow deletes a table together with the object that created it."""
    for one in gc.get_objects():
        if issubclass(type(one), CapturableResource) and one._resource_handle is handle:
            owner: object = one
            return owner
    return None


def _contents(handle: Handle, key_type: DType, value_type: DType) -> tuple[Array, Array]:
    """The keys of a table, in order, and their values."""
    with context.eager_mode():
        exported = tf.raw_ops.LookupTableExportV2(table_handle=handle, Tkeys=key_type, Tvalues=value_type)
        keys, values = (one.numpy() for one in exported)
    order = np.argsort(keys, kind="stable")
    return keys[order], values[order]


def _bytes_of(array: Array) -> int:
    return sum(map(len, array.reshape(-1))) if array.dtype == object else int(array.nbytes)
