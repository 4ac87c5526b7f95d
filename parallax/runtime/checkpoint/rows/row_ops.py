"""Ops of a worker's graph that read and write its part of one variable: ranges of local rows, or all at once.

Before a lazily updated table is read or written here, all its rows are brought up to date (`up_to_date`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import tensorflow as tf

from parallax.base.types import Array, DType, Handle, Operation, Session, Tensor, Value
from parallax.graph.ownership import Ownership
from parallax.graph.row_updates import row_update_ops
from parallax.runtime.checkpoint.format.stored_tensors import CheckpointEntry


@dataclass(frozen=True, slots=True)
class WholeAccess:
    """Ops on all of this worker's part of a variable: `update` writes the value fed to `new_value`."""

    value: Tensor
    new_value: Tensor
    update: Operation


class RowReader(Protocol):
    """Reads local rows of one variable."""

    def read(self, session: Session, low: int, high: int) -> Array:
        """Local rows `[high - low, ...]`."""

    def pick(self, session: Session, low: int, numbers: Array) -> Array:
        """Local rows `low + numbers`; the numbers ascend, and there is at least one."""


@dataclass(frozen=True, slots=True)
class RowOps:
    """Ops on the local rows of one variable in this worker's graph, from local row `low` up to `high`.

    `variable` is the handle or reference. `up_to_date` must run before it is read in another way. `whole` is for all
    rows.
    """

    variable: Handle
    up_to_date: tuple[Operation, ...]
    low: Tensor
    high: Tensor
    local_rows: Tensor
    rows: Tensor
    new_rows: Tensor
    update: Operation
    whole: WholeAccess

    def read(self, session: Session, low: int, high: int) -> Value:
        """Local rows `[high - low, ...]`."""
        return session.run(self.rows, {self.low: low, self.high: high})

    def pick(self, session: Session, low: int, numbers: Array) -> Value:
        """Local rows `low + numbers`."""
        return session.run(self.rows, {self.local_rows: low + numbers})

    def write(self, session: Session, low: int, rows: Array) -> None:
        """Overwrites local rows from `low` on."""
        session.run(self.update, {self.low: low, self.high: low + len(rows), self.new_rows: rows})


@dataclass(frozen=True, slots=True)
class PickedRows:
    """A holder's rows among the marked ones: local rows `low + numbers`, at `places` among the marked."""

    low: int
    numbers: Array
    places: Array

    @classmethod
    def of(cls, ownership: Ownership, holder: int, first: int, marked: Array) -> PickedRows:
        """The rows of a holder that are true in `marked`, which begins at row `first`."""
        low, high = ownership.local_range(holder, first, len(marked))
        here = np.empty(high - low, np.int64)
        for of_range, of_holder in ownership.pieces(holder, first) if low < high else ():
            here[of_holder] = np.arange(len(marked))[of_range]
        numbers = np.flatnonzero(marked[here])
        return cls(low, numbers, (np.cumsum(marked) - 1)[here[numbers]])


def row_ops(
    stored: CheckpointEntry, op: str, low: Tensor, high: Tensor, local_rows: Tensor, lazy: Sequence[tuple[str, ...]]
) -> RowOps:
    """Builds the ops on the rows of a variable op that has rows of `stored`, on its device."""
    variable, dtype = variable_of(stored, op)
    new_rows = tf.compat.v1.placeholder(dtype, [None, *(stored.shape or ())[1:]])
    before = up_to_date(op, lazy)
    with tf.device(variable.device or None), tf.control_dependencies(before):
        if variable.dtype == tf.resource:
            rows = tf.raw_ops.ResourceGather(resource=variable, indices=local_rows, dtype=dtype)
            update = tf.raw_ops.ResourceScatterUpdate(resource=variable, indices=local_rows, updates=new_rows)
        else:
            rows = tf.raw_ops.GatherV2(params=variable, indices=local_rows, axis=0)
            update = tf.raw_ops.ScatterUpdate(ref=variable, indices=local_rows, updates=new_rows).op
        whole = whole_access(variable, dtype, new_rows, has_shape=True)
    return RowOps(variable, tuple(before), low, high, local_rows, rows, new_rows, update, whole)


def whole_access(variable: Handle, dtype: DType, new_value: Tensor, has_shape: bool) -> WholeAccess:
    """Builds ops on all of a variable of the default graph, where the graph may fix its shape."""
    if variable.dtype == tf.resource:
        value = tf.raw_ops.ReadVariableOp(resource=variable, dtype=dtype)
        return WholeAccess(value, new_value, tf.raw_ops.AssignVariableOp(resource=variable, value=new_value))
    update = tf.raw_ops.Assign(ref=variable, value=new_value, validate_shape=has_shape)
    return WholeAccess(tf.identity(variable), new_value, update.op)


def variable_of(stored: CheckpointEntry, op: str) -> tuple[Handle, DType]:
    """The handle or reference in the default graph, and the element type."""
    return tf.compat.v1.get_default_graph().get_tensor_by_name(f"{op}:0"), tf.as_dtype(stored.dtype)


def up_to_date(op: str, tables: Sequence[tuple[str, ...]]) -> list[Operation]:
    """The ops that must run before a variable in the default graph is read or written; none for most variables.

    Args:
        op: that holds the variable.
        tables: the variable ops of each lazily updated table of the graph, its own first.
    """
    members = next((members for members in tables if op in members), None)
    if members is None:
        return []
    graph = tf.compat.v1.get_default_graph()
    states = [graph.get_tensor_by_name(f"{member}:0") for member in members]
    with tf.device(states[0].device or None), tf.control_dependencies(None):
        made = row_update_ops().parallax_bring_up_to_date(states=states, T=states[0].op.get_attr("dtype"))
    return [made]
