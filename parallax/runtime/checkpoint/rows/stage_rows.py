"""Accesses variables that only a team of the workers has: of one stage of the model, or of an island."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import tensorflow as tf

from parallax.base.types import Array, ArrayOnWorker0, Comm, Session
from parallax.runtime.checkpoint.format.stored_tensors import CheckpointEntry
from parallax.runtime.worker.barrier import barrier


class WorkerRows(Protocol):
    """This worker's part of a variable: all of it, or a share."""

    def read_stage_rows(self, session: Session, first: int, count: int) -> ArrayOnWorker0:
        """Reads rows on the first worker of the stage; if the workers have shares, all of them must call it."""

    def write_stage_rows(self, session: Session, first: int, rows: Array) -> None:
        """Writes this worker's part of these rows; all workers of the stage must call it."""


@dataclass(frozen=True, slots=True)
class RowsOfStage:
    """Rows that only the workers of one stage have.

    Attributes:
        stored: the variable's place in the checkpoint.
        local_rows: this worker's rows; None if another stage has them.
        reader: the worker that reads them.
        comm: communicator of the workers.
        is_shared: whether each worker of the stage has a share.
        is_read: whether its team is the reader's; other islands have values of their own.
    """

    stored: CheckpointEntry
    local_rows: WorkerRows | None
    reader: int
    comm: Comm
    is_shared: bool = False
    is_read: bool = True

    def read(self, session: Session, first: int, count: int) -> ArrayOnWorker0:
        """Reads rows and sends them to worker 0."""
        rank = self.comm.Get_rank()
        local = None
        if self.local_rows is not None and self.is_read and (self.is_shared or rank == self.reader):
            local = self.local_rows.read_stage_rows(session, first, count)
        if self.reader:
            barrier(self.comm)
            if rank == self.reader:
                self.comm.send(local, 0)
            elif rank == 0:
                local = self.comm.recv(source=self.reader)
        return local if rank == 0 else None

    def write(self, session: Session, first: int, count: int, rows: ArrayOnWorker0) -> None:
        """Broadcasts worker 0's rows; the workers that store them write them."""
        barrier(self.comm)
        rows = self.comm.bcast(rows)
        if self.local_rows is not None and (count or not self.stored.has_rows):
            self.local_rows.write_stage_rows(session, first, rows)


@dataclass(frozen=True, slots=True)
class RowsOfCentre:
    """Rows of a variable that islands average: the centre's are read, and what is written is the value of all islands.

    Attributes:
        stored: the variable's place in the checkpoint.
        local_rows: this worker's rows; None for what only the centre has.
        values: the centre's, which leaders have; None elsewhere.
        comm: communicator of the workers.
    """

    stored: CheckpointEntry
    local_rows: WorkerRows | None
    values: Array | None
    comm: Comm

    def read(self, session: Session, first: int, count: int) -> ArrayOnWorker0:
        """Rows of the centre, on worker 0."""
        if self.comm.Get_rank() or self.values is None:
            return None
        found = self.values[first : first + count] if self.stored.has_rows else self.values
        return found.astype(tf.as_dtype(self.stored.dtype).as_numpy_dtype)

    def write(self, session: Session, first: int, count: int, rows: ArrayOnWorker0) -> None:
        """Broadcasts worker 0's rows; all workers write them, and leaders keep them as the centre's."""
        barrier(self.comm)
        rows = self.comm.bcast(rows)
        if self.local_rows is not None and (count or not self.stored.has_rows):
            self.local_rows.write_stage_rows(session, first, rows)
        if self.values is not None and self.stored.has_rows:
            self.values[first : first + count] = rows
        elif self.values is not None:
            self.values[...] = rows
