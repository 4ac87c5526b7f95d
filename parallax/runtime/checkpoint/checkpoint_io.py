"""Writes and reads checkpoints collectively: worker 0 reads the files, and every worker that sees their folder writes.

All data moves in chunks of at most CHUNK_BYTES; a row is never split. Keys, shapes and types are compared before
anything is changed, and all workers raise the same error. A checkpoint is read after variables have their initial
values and before hooks see the session.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

import tensorflow as tf

from parallax.base.errors import CheckpointError
from parallax.base.types import Comm, Session
from parallax.runtime.checkpoint.collective_write import (
    CheckpointResult,
    check_one_step,
    run_on_worker_0,
    write_contents,
)
from parallax.runtime.checkpoint.format.bundle import Bundle
from parallax.runtime.checkpoint.format.chain import States, state_of
from parallax.runtime.checkpoint.format.folder import INCREMENT, Retention, absolute, file_errors, list_prefixes
from parallax.runtime.checkpoint.format.folder_owner import FolderClaim
from parallax.runtime.checkpoint.format.folder_watch import FolderWatch
from parallax.runtime.checkpoint.format.links import Header
from parallax.runtime.checkpoint.format.sorted_string_table import DamagedCheckpoint
from parallax.runtime.checkpoint.format.stored_rows import Readable, check_fits, ranges_of, read_rows
from parallax.runtime.checkpoint.format.stored_tensors import CHUNK_BYTES
from parallax.runtime.checkpoint.format.writer import Writer
from parallax.runtime.checkpoint.rows.touched_tables import Marks
from parallax.runtime.checkpoint.rows.variable_rows import RowsOnServers, StoredVariable
from parallax.runtime.worker.barrier import barrier


@dataclass(frozen=True, slots=True)
class Storage:
    """The variables of a job and the folder of their checkpoints.

    Attributes:
        folder: worker 0 writes and reads here; the other workers write here too if they see it.
        variables: all variables, in the same order on all workers, which keeps their calls in step.
        comm: communicator of the workers (mpi4py).
        chunk_bytes: the maximum of bytes moved at once.
        retention: which checkpoints remain after a new one.
        marks: the variables that record touched rows, if increments are written.
        internal_variables: variables of this project that are written too, and that `read` skips.
        timeout_s: seconds that the folder may fail to respond.
        claim: on the folder, of worker 0's process; None where no other job writes there.
    """

    folder: str
    variables: tuple[StoredVariable, ...]
    comm: Comm
    chunk_bytes: int = CHUNK_BYTES
    retention: Retention = Retention()
    marks: Marks = Marks()
    internal_variables: tuple[StoredVariable, ...] = ()
    timeout_s: float = float("inf")
    claim: FolderClaim | None = None

    @property
    def watch(self) -> FolderWatch:
        """Detects that the folder does not respond."""
        return FolderWatch(absolute(self.folder), self.timeout_s)

    @property
    def everything(self) -> tuple[StoredVariable, ...]:
        """All variables that must be read at one instant."""
        return (*self.variables, *self.internal_variables, *self.marks.tables)

    def writer(self, step: int, header: Header | None, chunk_bytes: int) -> Writer:
        """Returns the writer of a checkpoint's files for this worker."""
        name = f"{INCREMENT}-{step}" if header is not None and header.base else ""
        rank, claim = self.comm.Get_rank(), self.claim
        return Writer(
            absolute(self.folder), step, chunk_bytes, self.retention, name, rank, claim=claim, watch=self.watch
        )

    def acquire_folder(self, waits: bool = False) -> None:
        """Takes the folder for this job; every worker must call it.

        A folder that cannot be written is not taken yet: the next write of a checkpoint takes it, or reports why it
        cannot.

        Args:
            waits: whether to wait for a job that has the folder.

        Raises:
            FolderInUse: on all workers, when it belongs to another job.
        """
        claim = self.claim

        def take() -> None:
            if claim is not None:
                with contextlib.suppress(OSError, tf.errors.OpError):
                    (claim.wait if waits else claim.acquire)()

        watch = nullcontext() if waits else self.watch.doing("Training cannot begin")
        run_on_worker_0(self.comm, take, watch)

    def release_folder(self) -> None:
        """Releases the folder for other jobs."""
        if self.claim is not None:
            with self.watch.doing("The job cannot end"):
                self.claim.release()

    def save(self, session: Session, step: int, header: Header | None = None) -> CheckpointResult:
        """Writes a checkpoint; every worker must call it, at the same step, and returns when it is done.

        Args:
            session: TensorFlow's session on the worker's graph.
            step: the global step.
            header: the checkpoint's header, which makes it an increment or a full one.

        Raises:
            FilesFailed: on all workers, when the folder cannot be written. Earlier checkpoints are untouched.
            CheckpointError: when the workers are not at the same step.
        """
        check_one_step(self.comm, step)
        self._bring_up_to_date(session)
        contents = self.marks.contents(self.everything, header)
        moved = write_contents(contents, self.comm, session, self.writer(step, header, self.chunk_bytes))
        self.marks.forget(session)
        barrier(self.comm)  # worker 0 resets rows for servers, and no worker trains before that
        return moved

    def _bring_up_to_date(self, session: Session) -> None:
        """Brings rows on servers up to date from worker 0, as the other workers' graphs may not know all updates."""
        on_servers = [one for one in self.everything if isinstance(one, RowsOnServers)]
        lacking = [op for one in on_servers for rows in one.partitions for op in rows.up_to_date]
        if lacking and self.comm.Get_rank() == 0:
            session.run(lacking)

    def next_step(self) -> int:
        """Returns the highest step of the folder's checkpoints plus 1, at least 1; every worker must call it."""
        folder = absolute(self.folder)
        prefixes = run_on_worker_0(self.comm, lambda: list_prefixes(folder), self._reading(folder))
        steps = [int(prefix.rpartition("-")[2]) for prefix in prefixes or () if prefix.rpartition("-")[2].isdecimal()]
        return int(self.comm.bcast(max(steps, default=0) + 1))

    def load(self, session: Session) -> CheckpointResult | None:
        """Loads the latest intact state, if there is one; every worker must call it.

        This is a full checkpoint with all increments that follow it. A checkpoint found to be damaged is skipped, and
        the state before it overwrites the values that were read of it.

        Returns:
            None when the folder has none.

        Raises:
            CheckpointError: on all workers, when no checkpoint is intact, or one does not fit the graph.
        """
        began_s = time.monotonic()
        folder, comm = absolute(self.folder), self.comm
        states = States(folder)
        while True:
            prefix = comm.bcast(run_on_worker_0(comm, states.following, self._reading(folder)))
            if prefix is None:
                break
            try:
                total_bytes, largest_bytes = self._read(session, prefix, states.open_chain)
            except DamagedCheckpoint as error:
                states.is_damaged(error)
            else:
                self.marks.forget(session)
                barrier(comm)
                header, notes = comm.bcast(
                    (states.open_chain().header, tuple(states.notes)) if not comm.Get_rank() else None
                )
                return CheckpointResult(
                    prefix, total_bytes, largest_bytes, time.monotonic() - began_s, notes=notes, header=header
                )
        skipped = comm.bcast(states.notes)
        if not skipped:
            return None
        raise CheckpointError(
            f"No checkpoint in {folder} is complete. {' '.join(skipped)} Restore their files, or delete the file "
            "`checkpoint` there to start from the beginning."
        )

    def read(self, session: Session, prefix: str) -> tuple[int, int]:
        """Reads one checkpoint; every worker must call it.

        Returns:
            Bytes of all variables, and the maximum that was in memory at once.

        Raises:
            CheckpointError: on all workers, when it does not fit the graph, or is damaged.
        """
        return self._read(session, prefix, lambda: Bundle(prefix))

    def _read(self, session: Session, prefix: str, opening: Callable[[], Readable]) -> tuple[int, int]:
        """Reads the checkpoint that worker 0 opens."""
        reader: list[Readable] = []

        def open_ranges() -> list[list[tuple[int, int]]]:
            reader.append(opening())
            check_fits(
                reader[0],
                [held.stored for held in self.variables],
                "Continue with the graph that wrote it, or name another folder in CheckPointConfig.ckpt_dir.",
            )
            for key in sorted({one.stored.key for one in self.internal_variables} & reader[0].tensors.keys()):
                shape = reader[0].tensors[key].shape
                reader[0].read(key, (0,) * len(shape), shape)  # damage of it counts too; its values are read elsewhere
            return [ranges_of(reader[0], held.stored, self.chunk_bytes) for held in self.variables]

        ranges = self.comm.bcast(run_on_worker_0(self.comm, open_ranges, self._reading(prefix)))
        total_bytes = largest_bytes = 0
        for variable, own_ranges in zip(self.variables, ranges, strict=True):
            for first, count in own_ranges:
                read = partial(lambda *of: read_rows(reader[0], *of), variable.stored, first, count)
                rows = run_on_worker_0(self.comm, read, self._reading(prefix))
                size = int(getattr(rows, "nbytes", 0))
                total_bytes, largest_bytes = total_bytes + size, max(largest_bytes, size)
                variable.write(session, first, count, rows)
        return total_bytes, largest_bytes

    def read_present(self, session: Session, prefix: str, some: Sequence[StoredVariable]) -> None:
        """Reads those of some variables that a checkpoint has, in the shape that is stored; every worker must call it.

        Raises:
            CheckpointError: on all workers, when it cannot be read.
        """
        reader: list[Readable] = []

        def open_ranges() -> list[list[tuple[int, int]]]:
            reader.append(state_of(prefix))
            tensors = reader[0].tensors
            return [
                ranges_of(reader[0], one.stored, self.chunk_bytes)
                if one.stored.key in tensors and one.stored.whole_shape in (None, tuple(tensors[one.stored.key].shape))
                else []
                for one in some
            ]

        ranges = self.comm.bcast(run_on_worker_0(self.comm, open_ranges, self._reading(prefix)))
        for one, own_ranges in zip(some, ranges, strict=True):
            for first, count in own_ranges:
                read = partial(lambda *of: read_rows(reader[0], *of), one.stored, first, count)
                one.write(session, first, count, run_on_worker_0(self.comm, read, self._reading(prefix)))

    @contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        with (
            self.watch.doing(f"{name} is not read"),
            file_errors(
                f"Cannot read the checkpoint {name} on the host of worker 0",
                "Make the folder available there, or name another one in CheckPointConfig.ckpt_dir.",
            ),
        ):
            yield
