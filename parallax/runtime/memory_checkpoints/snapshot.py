"""Reads a worker's variables for one set, in one run of TensorFlow, which also resets the touched rows.

A worker's own part is the state that the plan shards over the workers; all other variables are replicated, and the
first worker of each host reads them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from parallax.base.errors import CheckpointError
from parallax.base.types import Comm, Handle, Operation, Session, Tensor, Value
from parallax.runtime.checkpoint.format.stored_tensors import chunks
from parallax.runtime.checkpoint.rows.row_ops import RowOps
from parallax.runtime.checkpoint.rows.touched_tables import Marks
from parallax.runtime.checkpoint.rows.variable_rows import (
    ReplicatedRows,
    ReplicatedValue,
    ShardedRows,
    StoredVariable,
    whole_of,
)
from parallax.runtime.memory_checkpoints.part_files import COMMON, lone
from parallax.runtime.memory_checkpoints.part_records import PartHead, PartVariable, SetRecord
from parallax.runtime.memory_checkpoints.store import BASE_BYTES, BaseRows

v1 = tf.compat.v1


@dataclass(eq=False)
class _Part:
    """The ops that read one part.

    Attributes:
        owner: of the part.
        variables: its data.
        tables: the touched rows' numbers, and the readers of these rows of each variable, by its place.
        wholes: the readers of the others, by place.
        bases: the row ops of the variables that are updated by row, by place.
    """

    owner: int
    variables: list[PartVariable] = field(default_factory=list)
    tables: list[tuple[Tensor, dict[int, Tensor]]] = field(default_factory=list)
    wholes: dict[int, Tensor] = field(default_factory=dict)
    bases: dict[int, RowOps] = field(default_factory=dict)

    def head(self, generation: int, workers: int) -> PartHead:
        """The head of its files."""
        return PartHead(generation, self.owner, workers, tuple(self.variables))

    def base_rows(self, session: Session) -> BaseRows:
        """The rows of set 0."""
        for at, ops in self.bases.items():
            one = self.variables[at]
            for first, count in chunks(one.rows, one.row_bytes, BASE_BYTES) if one.rows else ():
                yield at, first, _bytes(ops.read(session, first, first + count), one.row_bytes)

    def record(self, number: int, step: int, fetched: Any) -> SetRecord:
        """The record of a set, from the values read."""
        tables, wholes = fetched
        rows = {
            at: (numbers, _bytes(values, self.variables[at].row_bytes))
            for numbers, members in tables
            for at, values in members.items()
        }
        return SetRecord(number, step, rows, {at: self._pack(at, value) for at, value in wholes.items()})

    def _pack(self, at: int, value: Value) -> Any:
        if not self.variables[at].row_bytes:
            return tf.make_tensor_proto(value).SerializeToString()
        return memoryview(_bytes(value, 1).reshape(-1))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Reads the sets of one worker.

    Attributes:
        parts: those that this worker reads: its own, which is sent, and others.
        step: the global step.
        clear: resets the touched rows, after they were read.
        workers: how many there are.
    """

    parts: tuple[_Part, ...]
    step: Tensor
    clear: Operation
    workers: int

    def part_heads(self, generation: int) -> dict[int, PartHead]:
        """The heads of the parts, by owner."""
        return {one.owner: one.head(generation, self.workers) for one in self.parts}

    def bases(self, session: Session) -> dict[int, BaseRows]:
        """The rows for `PeerStore.begin`; the touched rows are reset first."""
        session.run(self.clear)
        return {one.owner: one.base_rows(session) for one in self.parts}

    def read(self, session: Session, number: int) -> dict[int, SetRecord]:
        """Reads the records of a set, for `PeerStore.add`."""
        step, values, _ = session.run([self.step, [(one.tables, one.wholes) for one in self.parts], self.clear])
        return {one.owner: one.record(number, int(step), read) for one, read in zip(self.parts, values, strict=True)}


def snapshot(
    variables: Sequence[StoredVariable],
    marks: Marks,
    comm: Comm,
    is_first: bool,
    step: Tensor,
    unreplicated: Collection[str] = (),
) -> Snapshot:
    """Adds the ops that read sets to the default graph, a worker's.

    Args:
        variables: all variables, and those of positions.
        marks: the records of touched rows.
        comm: communicator of the workers.
        is_first: whether this worker is the first of its host.
        step: tensor of the global step.
        unreplicated: the variables of which each row is on one host only.

    Raises:
        CheckpointError: when a variable is on servers.
    """
    rank = comm.Get_rank()
    local, single, common = _Part(rank), _Part(lone(rank)), _Part(COMMON)
    by_row = {op for ops in marks.variables for op in ops}
    places: dict[str, tuple[_Part, int]] = {}
    for one in variables:
        spread = single if one.stored.op in unreplicated else local
        part = spread if isinstance(one, ShardedRows) else common
        places[one.stored.op] = part, len(part.variables)
        part.variables.append(_describe(one, rank, one.stored.op in by_row))
    parts = tuple(part for part in (local, single, common) if part is local or (part.variables and part is not common))
    parts += (common,) if is_first else ()
    by_op = {one.stored.op: one for one in variables}
    with tf.name_scope("parallax/memory_checkpoints/"):
        handles = [_ops(mark).variable for mark in marks.tables]
        for handle, ops in zip(handles, marks.variables, strict=True):
            marked = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.bool)
            numbers = tf.reshape(tf.where(marked), [-1])
            for part in parts:
                rows = {places[op][1]: _ops(by_op[op]) for op in ops if places[op][0] is part}
                if rows:
                    part.tables.append((numbers, {at: _gather(one, numbers) for at, one in rows.items()}))
                    part.bases |= rows
        for one in variables:
            part, at = places[one.stored.op]
            whole = whole_of(one)
            if whole is not None and one.stored.op not in by_row and part in parts:
                part.wholes[at] = whole.access.value
        tables = [table for part in parts for table in part.tables]
        read = [tensor for numbers, rows in tables for tensor in (numbers, *rows.values())]
        with tf.control_dependencies(read):
            clear = tf.group(*(_clear_marks(handle) for handle in handles))
    return Snapshot(parts, step, clear, comm.Get_size())


def _describe(one: StoredVariable, rank: int, by_row: bool) -> PartVariable:
    stored = one.stored
    if isinstance(one, ShardedRows):
        rows = one.ownership.count(rank, stored.rows)
        return PartVariable(stored.op, rows, stored.row_bytes, by_row, one.ownership.pattern)
    if isinstance(one, ReplicatedRows):
        return PartVariable(stored.op, stored.rows, stored.row_bytes, by_row)
    if isinstance(one, ReplicatedValue):
        return PartVariable(stored.op, 1, 0)
    raise CheckpointError(
        f"In-memory checkpoints cover variables on workers only, but {stored.op} is on servers. Give a plan without "
        'servers (run_option="MPI"), or checkpoints in a folder (CheckPointConfig.ckpt_dir) in place of memory_steps.'
    )


def _ops(one: Any) -> RowOps:
    row_ops: RowOps = one.ops
    return row_ops


def _gather(ops: RowOps, numbers: Tensor) -> Tensor:
    """Gathers rows of a variable, before any worker trains on."""
    with tf.device(ops.variable.device or None), tf.control_dependencies(ops.up_to_date):
        if ops.variable.dtype == tf.resource:
            return tf.raw_ops.ResourceGather(resource=ops.variable, indices=numbers, dtype=ops.rows.dtype)
        return tf.raw_ops.GatherV2(params=ops.variable, indices=numbers, axis=0)


def _clear_marks(handle: Handle) -> Operation:
    marked = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.bool)
    return tf.raw_ops.AssignVariableOp(resource=handle, value=tf.zeros_like(marked))


def _bytes(array: Value, row_bytes: int) -> Any:
    """An array as rows of bytes, uint8 `[n, row_bytes]`."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(-1, row_bytes)
