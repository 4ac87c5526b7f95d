"""Moves variables from the processes of one plan to those of another, a piece at a time through worker 0.

It uses the calls that checkpoints are written and read by (parallax/runtime/checkpoint).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from parallax.base.types import Comm, Operation, Session, Tensor, Value
from parallax.graph.view import VARIABLES, GraphView
from parallax.runtime.checkpoint.format.stored_tensors import CHUNK_BYTES, CheckpointEntry, chunks
from parallax.runtime.checkpoint.rows.access_to_rows import build_access
from parallax.runtime.checkpoint.rows.row_places import Places
from parallax.runtime.checkpoint.rows.variable_rows import StoredVariable

v1 = tf.compat.v1


@dataclass(frozen=True, slots=True)
class Move:
    """The move of one variable.

    Attributes:
        source: its current place.
        target: its new place.
        make: ops of this worker that allocate the new variables, with their feeds.
        free: ops of this worker that release memory.
    """

    source: StoredVariable
    target: StoredVariable
    make: tuple[tuple[Operation, dict[Tensor, Value]], ...]
    free: tuple[Operation, ...]


def to_be_moved(view: GraphView, before: Places, after: Places) -> tuple[CheckpointEntry, ...]:
    """The variables that the two place differently, in the order of the user's graph."""
    moved = []
    for name, node in view.nodes.items():
        if node.op not in VARIABLES or _place(name, before) == _place(name, after):
            continue
        dtype = tf.as_dtype(node.attr["dtype"].type)
        shape = tuple(int(dim.size) for dim in node.attr["shape"].shape.dim)
        moved.append(CheckpointEntry(name, name, dtype.name, int(dtype.size), shape, shape, (0,) * len(shape), False))
    return tuple(moved)


def moves(stored: Sequence[CheckpointEntry], before: Places, after: Places, comm: Comm) -> tuple[Move, ...]:
    """Builds the moves of variables in the default graph, which must be a worker's that has the ops of both.

    Args:
        stored: the variables.
        before: their current placement.
        after: their new placement.
        comm: communicator of the workers.
    """
    sources, targets = build_access(tuple(stored), before, comm), build_access(tuple(stored), after, comm)
    dims = v1.placeholder(tf.int64, [None], name="parallax/storage/dims")
    planned_moves = []
    for one, source, target in zip(stored, sources, targets, strict=True):
        old, new = (_list_local_storage(one.op, places, comm.Get_rank()) for places in (before, after))
        make = tuple(_make_zeros(op, dims) for op in new if op not in old)
        free = tuple(_free(op) for op in old if op not in new)
        planned_moves.append(Move(source, target, make, free))
    return tuple(planned_moves)


def move(session: Session, one: Move, chunk_bytes: int = CHUNK_BYTES) -> int:
    """Moves one variable; every worker must call it. Returns the bytes that went through worker 0, on worker 0."""
    for op, feeds in one.make:
        session.run(op, feeds)
    stored, moved_bytes = one.source.stored, 0
    for first, count in chunks(stored.rows, stored.row_bytes, chunk_bytes):
        rows = one.source.read(session, first, count)
        moved_bytes += int(getattr(rows, "nbytes", 0))
        one.target.write(session, first, count, rows)
    for op in one.free:
        session.run(op)
    return moved_bytes


def _place(op: str, places: Places) -> tuple[object, ...]:
    return places.here(op), places.partitions.get(op), places.spread.get(op), op in places.absent


def _list_local_storage(op: str, places: Places, rank: int) -> tuple[str, ...]:
    """The variables in the session that store part of a user's variable, for this worker to allocate and release."""
    served = places.partitions.get(op, ()) if rank == 0 else ()
    return (*(() if op in places.absent else (places.here(op),)), *served)


def _make_zeros(op: str, dims: Tensor) -> tuple[Operation, dict[Tensor, Value]]:
    """An op that allocates a variable of zeros, with its feeds: a constant would stay in the graph."""
    variable = v1.get_default_graph().get_operation_by_name(op)
    handle, dtype = variable.outputs[0], tf.as_dtype(variable.get_attr("dtype"))
    with tf.device(handle.device or None):
        value = tf.raw_ops.Fill(dims=dims, value=tf.zeros([], dtype))
        if handle.dtype == tf.resource:
            made = tf.raw_ops.AssignVariableOp(resource=handle, value=value)
        else:
            made = tf.raw_ops.Assign(ref=handle, value=value).op
    return made, {dims: tf.TensorShape(variable.get_attr("shape")).as_list()}


def _free(op: str) -> Operation:
    """An op that releases a variable's memory; a reference variable, which cannot be deleted, becomes empty."""
    handle = v1.get_default_graph().get_operation_by_name(op).outputs[0]
    with tf.device(handle.device or None):
        if handle.dtype == tf.resource:
            return tf.raw_ops.DestroyResourceOp(resource=handle)
        empty = tf.zeros([0], handle.dtype.base_dtype)
        return tf.raw_ops.Assign(ref=handle, value=empty, validate_shape=False).op
