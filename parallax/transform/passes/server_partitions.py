"""Partitions of tables on servers: the variables, and full values sliced into them and concatenated from them.

A partition is named `parallax/server/NAME/part_K` and has the device of its server. Worker 0 slices full values that
are assigned; for initial values each server computes its own rows where it can (initial_rows.py). A full read reads all
partitions and restores the order of rows: each worker does so itself, unless an op that worker 0 alone computes
consumes the read.
"""

from __future__ import annotations

import tensorflow as tf

from parallax.base.types import Tensor, TensorShape
from parallax.graph.ownership import Ownership
from parallax.plans.rewrites import Rewrites, Table
from parallax.transform.building.editor import SCOPE, Editor
from parallax.transform.building.reduce_and_broadcast import device_of


def place_tables(editor: Editor, rewrites: Rewrites) -> None:
    """Builds the partitions of all tables on servers, including slots."""
    for table in rewrites.tables:
        if table.servers:
            for member in table.members:
                parts = tuple(_partition(editor, table, member, number) for number in range(len(table.servers)))
                editor.partitions[member] = parts


def partition_name(node: str, number: int) -> str:
    """The name of a variable's partition, or of a node's copy on its server."""
    return f"{SCOPE}/server/{node}/part_{number}"


def cut_rows(value: Tensor, partitions: int, is_scalar: bool = False) -> list[Tensor]:
    """The rows of each partition of a full value."""
    if partitions == 1 or is_scalar:
        return [value]
    ownership = Ownership.even(partitions)
    return [slice_holder_rows(value, ownership, number) for number in range(partitions)]


def slice_holder_rows(value: Tensor, ownership: Ownership, holder: int) -> Tensor:
    """The rows of a full value that one owner stores, in the order of its local rows."""
    slots = ownership.slots_of(holder)
    if ownership.slots == len(slots):
        return tf.identity(value)
    if not slots:
        return value[:0]
    if len(slots) == 1:
        return value[slots[0] :: ownership.slots]
    total = tf.raw_ops.Shape(input=value)[0]
    counts = [(total + ownership.slots - 1 - slot) // ownership.slots for slot in slots]
    local = tf.range(tf.add_n(counts))
    return tf.gather(value, local // len(slots) * ownership.slots + tf.gather(tf.constant(slots), local % len(slots)))


def reduce_partitions(parts: list[Tensor], kind: str) -> Tensor:
    """The elementwise sum, minimum or maximum of the partitions' results; all of one shape."""
    function = {"min": tf.minimum, "max": tf.maximum}.get(kind)
    if parts[0].dtype == tf.bool:
        function = {"min": tf.logical_and, "max": tf.logical_or}[kind]
    if function is None:
        return tf.add_n(parts)
    reduced = parts[0]
    for part in parts[1:]:
        reduced = function(reduced, part)
    return tf.identity(reduced)


def row_places(rows: int, ownership: Ownership) -> Tensor:
    """The position of each of a table's rows in the concatenation of all owners' rows, `[rows]`."""
    counts, shares = ownership.counts(rows), ownership.shares
    by_slot = list(zip(ownership.pattern, ownership.places, strict=True))
    starts = tf.constant([sum(counts[:holder]) + place for holder, place in by_slot])
    row = tf.range(rows)
    slot, turn = row % ownership.slots, row // ownership.slots
    if max(shares) > 1:
        turn *= tf.gather(tf.constant([shares[holder] for holder in ownership.pattern]), slot)
    return tf.gather(starts, slot) + turn


def assemble_rows(parts: list[Tensor], rows: int, shape: TensorShape) -> Tensor:
    """All rows of the partitions, in the user's order."""
    if len(parts) == 1:
        whole = tf.identity(parts[0])
    else:
        whole = tf.gather(tf.concat(parts, 0), row_places(rows, Ownership.even(len(parts))))
    if shape is not None:
        whole.set_shape(shape)
    return whole


def _partition(editor: Editor, table: Table, member: str, number: int) -> Tensor:
    node = editor.view.nodes[member]
    whole = [int(dim.size) for dim in node.attr["shape"].shape.dim]
    shape = [Ownership.even(len(table.servers)).count(number, whole[0]), *whole[1:]] if whole else []
    dtype = tf.dtypes.as_dtype(node.attr["dtype"].type)
    name = partition_name(member, number)
    with tf.device(device_of(table.servers[number])), editor.scratch.name_scope(None):
        if node.op == "VarHandleOp":
            return tf.raw_ops.VarHandleOp(dtype=dtype, shape=shape, shared_name=name, name=name)
        return tf.raw_ops.VariableV2(dtype=dtype, shape=shape, shared_name=name, name=name)
