"""Writes and reads checkpoints with all workers: worker 0 has the files, the others bring and get rows.

Everything goes in chunks of at most CHUNK_BYTES; a row is never cut. Keys, shapes and types are compared before
anything is changed, and all workers raise the same error. A checkpoint is read after the initial values are there and
before hooks see the session.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

from parallax.errors import CheckpointError
from parallax.runtime.checkpoint.bundle import Bundle
from parallax.runtime.checkpoint.folder import Retention, absolute, candidates, file_errors, listed
from parallax.runtime.checkpoint.held import StoredVariable
from parallax.runtime.checkpoint.sorted_string_table import DamagedCheckpoint
from parallax.runtime.checkpoint.stored import CHUNK_BYTES
from parallax.runtime.checkpoint.stored_rows import check_fits, ranges_of, read_rows
from parallax.runtime.checkpoint.writer import Writer
from parallax.runtime.checkpoint.writing import Moved, check_one_step, on_worker_0, write_variables
from parallax.types import Comm, Session


@dataclass(frozen=True, slots=True)
class Storage:
    """The variables of a job and the folder of their checkpoints.

    Attributes:
        folder: where worker 0 writes and reads; the other workers need no such folder.
        held: all variables, in the same order on all workers, which keeps their calls in step.
        comm: communicator of the workers (mpi4py).
        chunk_bytes: the most that is moved at once.
        retention: which checkpoints stay when a new one is there.
    """

    folder: str
    held: tuple[StoredVariable, ...]
    comm: Comm
    chunk_bytes: int = CHUNK_BYTES
    retention: Retention = Retention()

    def save(self, session: Session, step: int) -> Moved:
        """Writes a checkpoint; every worker must call it, at the same step, and returns when it is done.

        Raises:
            FilesFailed: on all workers, when the folder cannot be written. The checkpoints before are untouched.
            CheckpointError: when the workers are not at one step.
        """
        check_one_step(self.comm, step)
        return write_variables(
            self.held, self.comm, session, Writer(absolute(self.folder), step, self.chunk_bytes, self.retention)
        )

    def next_step(self) -> int:
        """The number after the highest that a checkpoint of the folder has, from 1; every worker must call it."""
        folder = absolute(self.folder)
        found = on_worker_0(self.comm, lambda: listed(folder), _reading(folder))
        steps = [int(prefix.rpartition("-")[2]) for prefix in found or () if prefix.rpartition("-")[2].isdecimal()]
        return int(self.comm.bcast(max(steps, default=0) + 1))

    def load(self, session: Session) -> Moved | None:
        """Reads the latest checkpoint that is whole, if there is one; every worker must call it.

        One that turns out to be damaged is skipped, and the one before it is read over what was read of it.

        Returns:
            None when the folder has none.

        Raises:
            CheckpointError: on all workers, when no checkpoint is whole, or one does not fit the graph.
        """
        began_s = time.monotonic()
        folder = absolute(self.folder)
        found = self.comm.bcast(on_worker_0(self.comm, lambda: candidates(folder), _reading(folder)))
        skipped: list[str] = []
        for prefix in found:
            try:
                total_bytes, largest_bytes = self.read(session, prefix)
            except DamagedCheckpoint as error:
                skipped.append(f"Skipped {prefix}: {error}.")
            else:
                return Moved(prefix, total_bytes, largest_bytes, time.monotonic() - began_s, notes=tuple(skipped))
        if not skipped:
            return None
        raise CheckpointError(
            f"One of the checkpoints in {folder} must be whole, and none is. {' '.join(skipped)} Put their files back, "
            "or delete the file `checkpoint` there to start anew."
        )

    def read(self, session: Session, prefix: str) -> tuple[int, int]:
        """Reads one checkpoint; every worker must call it.

        Returns:
            Bytes of all variables, and the most that was held at once.

        Raises:
            CheckpointError: on all workers, when it does not fit the graph, or is damaged.
        """
        reader: list[Bundle] = []

        def opened() -> list[list[tuple[int, int]]]:
            reader.append(Bundle(prefix))
            check_fits(
                reader[0],
                [held.stored for held in self.held],
                "Train on with the graph that wrote it, or name another folder in CheckPointConfig.ckpt_dir.",
            )
            return [ranges_of(reader[0], held.stored, self.chunk_bytes) for held in self.held]

        ranges = self.comm.bcast(on_worker_0(self.comm, opened, _reading(prefix)))
        total_bytes = largest_bytes = 0
        for held, own_ranges in zip(self.held, ranges, strict=True):
            for first, count in own_ranges:
                read = partial(lambda *of: read_rows(reader[0], *of), held.stored, first, count)
                rows = on_worker_0(self.comm, read, _reading(prefix))
                size = int(getattr(rows, "nbytes", 0))
                total_bytes, largest_bytes = total_bytes + size, max(largest_bytes, size)
                held.write(session, first, count, rows)
        return total_bytes, largest_bytes


def _reading(name: str) -> AbstractContextManager[None]:
    return file_errors(
        f"The checkpoint {name} must be readable on the machine of worker 0",
        "Give the folder to that machine, or name another one in CheckPointConfig.ckpt_dir.",
    )
