"""Builds the readers and writers of the variables in a worker's graph, according to each variable's plan."""

from __future__ import annotations

import tensorflow as tf

from parallax.base.types import Comm, Tensor
from parallax.runtime.checkpoint.format.stored_tensors import CheckpointEntry
from parallax.runtime.checkpoint.rows.row_ops import row_ops, variable_of, whole_access
from parallax.runtime.checkpoint.rows.row_places import Places
from parallax.runtime.checkpoint.rows.stage_rows import RowsOfCentre, RowsOfStage, WorkerRows
from parallax.runtime.checkpoint.rows.variable_rows import (
    ReplicatedRows,
    ReplicatedValue,
    RowsOnServers,
    ShardedRows,
    StoredVariable,
    ValueOnServer,
)

_SCOPE = "parallax/storage/"


def build_access(stored: tuple[CheckpointEntry, ...], places: Places, comm: Comm) -> tuple[StoredVariable, ...]:
    """Builds the readers and writers of variables in the default graph, which must be a worker's graph.

    Args:
        stored: the variables.
        places: the placement of their rows.
        comm: communicator of the workers (mpi4py).
    """
    accesses: list[StoredVariable] = []
    team = comm.Split(places.stage, comm.Get_rank()) if places.stages else comm
    stages = comm.allgather(places.stage) if places.stages else []
    with tf.name_scope(_SCOPE):
        low = tf.compat.v1.placeholder(tf.int64, [], name="low")
        high = tf.compat.v1.placeholder(tf.int64, [], name="high")
        local_rows = tf.range(low, high)
        for one in stored:
            parts, here = places.partitions.get(one.op, ()), places.here(one.op)
            if one.op in places.stages:
                stage_rows = (
                    None if one.op in places.elsewhere else _access_stage_rows(one, places, low, high, local_rows, team)
                )
                centre, is_read = (
                    places.centres.get(one.op),
                    not places.centres or places.stage == places.stages[one.op],
                )
                if centre is not None and one.op not in places.spread:
                    accesses.append(RowsOfCentre(one, stage_rows, centre.value, comm))
                else:
                    shared = one.op in places.spread
                    reader = stages.index(places.stages[one.op])
                    accesses.append(RowsOfStage(one, stage_rows, reader, comm, shared, is_read))
                continue
            if not one.has_rows:
                value = _copied_value(one, here, comm)
                accesses.append(ValueOnServer(one, _copied_value(one, parts[0], comm), value, comm) if parts else value)
                continue
            lazy = places.lazily_updated
            on_servers = tuple(row_ops(one, part, low, high, local_rows, lazy) for part in parts)
            if one.op in places.absent:
                accesses.append(RowsOnServers(one, on_servers, None, comm))
                continue
            ops = row_ops(one, here, low, high, local_rows, lazy)
            if one.op in places.spread:
                accesses.append(ShardedRows(one, ops, places.spread[one.op], comm))
            else:
                copied = ReplicatedRows(one, ops, comm)
                accesses.append(RowsOnServers(one, on_servers, copied, comm) if parts else copied)
    return tuple(accesses)


def _access_stage_rows(
    stored: CheckpointEntry, places: Places, low: Tensor, high: Tensor, local_rows: Tensor, team: Comm
) -> WorkerRows:
    """This worker's part of a variable of its stage, whose workers are a team."""
    if not stored.has_rows:
        return _copied_value(stored, places.here(stored.op), team)
    ops = row_ops(stored, places.here(stored.op), low, high, local_rows, places.lazily_updated)
    if stored.op in places.spread:
        return ShardedRows(stored, ops, places.spread[stored.op], team)
    return ReplicatedRows(stored, ops, team)


def _copied_value(stored: CheckpointEntry, op: str, comm: Comm) -> ReplicatedValue:
    variable, dtype = variable_of(stored, op)
    new_value = tf.compat.v1.placeholder(dtype, stored.shape)
    with tf.device(variable.device or None):
        return ReplicatedValue(stored, whole_access(variable, dtype, new_value, stored.shape is not None), comm)
