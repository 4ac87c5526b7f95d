"""Accesses a variable of one stage of the model: the stage's first worker reads it, and all its workers write it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from parallax.base.types import Array, ArrayOnWorker0, Comm, Session
from parallax.runtime.checkpoint.format.stored_tensors import CheckpointEntry
from parallax.runtime.worker.barrier import barrier


class RowsHere(Protocol):
    """This worker's part of a variable: all of it, or a share."""

    def read_own(self, session: Session, first: int, count: int) -> ArrayOnWorker0:
        """Reads rows on the first worker of the stage; if the workers have shares, all of them must call it."""

    def write_own(self, session: Session, first: int, rows: Array) -> None:
        """Writes this worker's part of these rows; all workers of the stage must call it."""


@dataclass(frozen=True, slots=True)
class RowsOfStage:
    """Rows that only the workers of one stage have.

    Attributes:
        stored: the variable's place in the checkpoint.
        own: this worker's rows; None if another stage has them.
        reader: the worker that reads them.
        comm: communicator of the workers.
        is_shared: whether each worker of the stage has a share.
    """

    stored: CheckpointEntry
    own: RowsHere | None
    reader: int
    comm: Comm
    is_shared: bool = False

    def read(self, session: Session, first: int, count: int) -> ArrayOnWorker0:
        """Reads rows and sends them to worker 0."""
        rank = self.comm.Get_rank()
        own = None
        if self.own is not None and (self.is_shared or rank == self.reader):
            own = self.own.read_own(session, first, count)
        if self.reader:
            barrier(self.comm)
            if rank == self.reader:
                self.comm.send(own, 0)
            elif rank == 0:
                own = self.comm.recv(source=self.reader)
        return own if rank == 0 else None

    def write(self, session: Session, first: int, count: int, rows: ArrayOnWorker0) -> None:
        """Broadcasts worker 0's rows; the workers that store them write them."""
        barrier(self.comm)
        rows = self.comm.bcast(rows)
        if self.own is not None and (count or not self.stored.has_rows):
            self.own.write_own(session, first, rows)
