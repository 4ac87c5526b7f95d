"""Reads a job's state from the memory of its hosts, under whatever plan the job is restarted with.

Every worker reports the parts that its host has, and all select the same set. Worker 0 receives each range of rows from
the workers that read its parts, and sends it to its owners, by the calls with which a checkpoint is loaded.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.tensor_pb2 import TensorProto

from parallax.base.errors import CheckpointError
from parallax.base.types import Array, ArrayOnWorker0, Comm, Picklable, Session, Value
from parallax.graph.ownership import Ownership
from parallax.runtime.checkpoint.format.stored_tensors import CHUNK_BYTES, CheckpointEntry, chunks
from parallax.runtime.checkpoint.positions import NAMES, WORKERS, StoredPositions
from parallax.runtime.checkpoint.rows.variable_rows import StoredVariable
from parallax.runtime.memory_checkpoints.choose_set import ChosenSet, choose_set, newest_generation
from parallax.runtime.memory_checkpoints.part_files import COMMON, PartView, lone
from parallax.runtime.memory_checkpoints.store import part_folder, parts_in
from parallax.runtime.worker.barrier import barrier


@dataclass(frozen=True)
class RecoveredState:
    """A complete set, one worker's part in reading it.

    Attributes:
        folder: of this worker's host.
        comm: communicator of the workers.
        chosen: the set.
    """

    folder: Path
    comm: Comm
    chosen: ChosenSet

    @cached_property
    def views(self) -> Mapping[int, PartView]:
        """The parts that this worker reads."""
        chosen, rank = self.chosen, self.comm.Get_rank()
        return {
            owner: PartView(part_folder(self.folder, chosen.generation, owner), chosen.number)
            for owner, reader in chosen.readers.items()
            if reader == rank
        }

    @cached_property
    def patterns(self) -> Mapping[str, tuple[int, ...]]:
        """Variable op -> the former owners of its rows, for variables sharded over the workers; on all workers."""
        pattern_by_op = {
            one.op: one.pattern for view in self.views.values() for one in view.head.variables if one.pattern
        }
        return {op: pattern for found in self.comm.allgather(pattern_by_op) for op, pattern in found.items()}

    @cached_property
    def unreplicated(self) -> Collection[str]:
        """The variables of which each row was on one host only; on all workers."""
        local_ops = {one.op for owner, view in self.views.items() if owner < COMMON for one in view.head.variables}
        return set().union(*self.comm.allgather(local_ops))

    @property
    def lost(self) -> tuple[int, ...]:
        """The owners whose rows of such variables are lost."""
        return tuple(rank for rank in range(self.chosen.workers) if lone(rank) not in self.chosen.readers)

    def load(self, session: Session, variables: Sequence[StoredVariable]) -> list[str]:
        """Reads all variables; every worker must call it.

        Args:
            session: TensorFlow's session on the worker's graph.
            variables: the variables, under the plan of this start.

        Returns:
            Those of which some rows are lost, and keep their current values.

        Raises:
            CheckpointError: on all workers, when the state does not have all of them.
        """
        known = {one.op for view in self.views.values() for one in view.head.variables}
        everywhere = set().union(*self.comm.allgather(known))
        if missing := sorted(one.stored.op for one in variables if one.stored.op not in everywhere):
            raise CheckpointError(
                f"The in-memory checkpoint lacks the variable {missing[0]}, which the graph has. Start a new job "
                "with this graph."
            )
        for one in variables:
            stored = one.stored
            if not stored.has_rows:
                one.write(session, 0, 1, self._value(stored))
                continue
            for first, count in chunks(stored.rows, stored.row_bytes, CHUNK_BYTES):
                is_broken = stored.op in self.unreplicated and bool(self.lost)
                below = one.read(session, first, count) if is_broken else None
                one.write(session, first, count, self.rows(stored, first, count, below))
        return sorted(one.stored.op for one in variables if one.stored.op in self.unreplicated) if self.lost else []

    def positions(self) -> StoredPositions | None:
        """The positions of random streams and input pipelines; None if not stored. Every worker must call it."""
        local_rows = {owner: _positions(view, WORKERS, 0, 1) for owner, view in self.views.items() if view.has(WORKERS)}
        by_owner = {owner: row for found in self.comm.allgather(local_rows) for owner, row in found.items()}
        named = [_names(view) for view in self.views.values() if view.has(NAMES)]
        names = next((one for found in self.comm.allgather(named) for one in found), None)
        if names is None or not by_owner:
            return None
        workers = np.stack([by_owner[owner].reshape(-1, 4) for owner in sorted(by_owner)])
        return StoredPositions({int(name): workers[:, place] for place, name in enumerate(names)})

    def rows(self, stored: CheckpointEntry, first: int, count: int, below: Array | None = None) -> ArrayOnWorker0:
        """Rows `[count, ...]` on worker 0, None elsewhere; every worker must call it.

        Args:
            stored: the variable.
            first: the first row.
            count: how many.
            below: on worker 0, the values used for lost rows.
        """
        pattern = self.patterns.get(stored.op)
        if pattern is None:
            common = self.views.get(COMMON)
            data = self._to_worker_0(COMMON, None if common is None else common.read(stored.op, first, first + count))
            return None if data is None else _cast(stored, data)
        ownership = Ownership(pattern, self.chosen.workers)
        views = {max(owner, lone(owner)): view for owner, view in self.views.items() if view.has(stored.op)}
        mine = {
            owner: view.read(stored.op, *ownership.local_range(owner, first, count)) for owner, view in views.items()
        }
        barrier(self.comm)
        gathered = self.comm.gather(mine)
        if gathered is None:
            return None
        rows = np.empty((count, stored.row_bytes), np.uint8)
        if below is not None:
            rows[:] = np.ascontiguousarray(below).reshape(-1).view(np.uint8).reshape(rows.shape)
        for owner, theirs in (item for of_worker in gathered for item in of_worker.items()):
            for here, there in ownership.pieces(owner, first) if len(theirs) else ():
                rows[here] = theirs[there]
        return _cast(stored, rows)

    def _value(self, stored: CheckpointEntry) -> ArrayOnWorker0:
        """A value without rows, on worker 0."""
        common = self.views.get(COMMON)
        data = self._to_worker_0(COMMON, None if common is None else bytes(common.value(stored.op)))
        return None if data is None else tf.make_ndarray(TensorProto.FromString(data))

    def _to_worker_0(self, owner: int, data: Picklable) -> Picklable:
        """Sends data from the reader of a part to worker 0."""
        reader, rank = self.chosen.readers[owner], self.comm.Get_rank()
        barrier(self.comm)
        if reader and rank == reader:
            self.comm.send(data, 0)
        if rank:
            return None
        return self.comm.recv(source=reader) if reader else data


def recovered_state(folder: Path, comm: Comm) -> RecoveredState | None:
    """Finds the state that the hosts of these workers have; every worker must call it.

    Args:
        folder: of this worker's host.
        comm: communicator of the workers.

    Returns:
        None if there is none.

    Raises:
        CheckpointError: on all workers, when there was one, and it is incomplete.
    """
    chosen = choose_set(comm.allgather(parts_in(folder)))
    return None if chosen is None else RecoveredState(folder, comm, chosen)


def next_generation(folder: Path, comm: Comm) -> int:
    """The number of the generation that this start begins; every worker must call it."""
    return newest_generation(comm.allgather(parts_in(folder))) + 1


def _cast(stored: CheckpointEntry, rows: Array) -> Value:
    """Converts bytes of rows to the variable's type and shape."""
    return rows.view(tf.as_dtype(stored.dtype).as_numpy_dtype).reshape(len(rows), *(stored.shape or ())[1:])


def _positions(view: PartView, op: str, low: int, high: int) -> Any:
    return view.read(op, low, high).view(np.int64)


def _names(view: PartView) -> Any:
    return _positions(view, NAMES, 0, view.variable(NAMES).rows).reshape(-1)
