"""Writes and reads checkpoints with all workers: worker 0 has the files, the others bring and get rows.

Everything goes in chunks of at most CHUNK_BYTES; a row is never cut. Keys, shapes and types are compared before
anything is changed, and all workers raise the same error. A checkpoint is read after the initial values are there and
before hooks see the session.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from parallax.errors import CheckpointError
from parallax.runtime.checkpoint.bundle import Bundle
from parallax.runtime.checkpoint.folder import FilesFailed, Retention, absolute, candidates, file_errors, listed
from parallax.runtime.checkpoint.held import StoredVariable
from parallax.runtime.checkpoint.sorted_string_table import DamagedCheckpoint
from parallax.runtime.checkpoint.stored import CHUNK_BYTES, Stored, chunks
from parallax.runtime.checkpoint.writer import Writer
from parallax.runtime.worker.barrier import barrier
from parallax.types import Comm, Session

_MOST_NAMED = 5  # variables that a message lists


@dataclass(frozen=True, slots=True)
class Moved:
    """What came of one checkpoint, on worker 0; the other workers know the prefix only.

    Attributes:
        prefix: the checkpoint's name.
        moved_bytes: bytes of all variables.
        largest_bytes: the most that was held at once of what was moved.
        seconds: how long it took.
        notes: what was skipped as it was damaged, or deleted to make room, a sentence each; on all workers.
    """

    prefix: str
    moved_bytes: int = 0
    largest_bytes: int = 0
    seconds: float = 0.0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Storage:
    """The variables of a job and the folder of their checkpoints.

    Attributes:
        folder: where worker 0 writes and reads; the other workers need no such folder.
        held: all variables, in the same order on all workers, which keeps their calls in step.
        comm: communicator of the workers (mpi4py).
        chunk_bytes: the most that is moved at once.
        retention: which checkpoints stay when a new one is there.
        beside: variables that are written too, and that `read` passes over.
    """

    folder: str
    held: tuple[StoredVariable, ...]
    comm: Comm
    chunk_bytes: int = CHUNK_BYTES
    retention: Retention = Retention()
    beside: tuple[StoredVariable, ...] = ()

    def save(self, session: Session, step: int) -> Moved:
        """Writes a checkpoint; every worker must call it, at the same step, and returns when it is done.

        On a full disk older checkpoints go, as far as they may, all but the latest, and it is written once more.

        Raises:
            FilesFailed: on all workers, when the folder cannot be written. The checkpoints before are untouched.
            CheckpointError: when the workers are not at one step.
        """
        self._check_one_step(step)
        try:
            return self._save(session, step)
        except FilesFailed as error:
            if not error.is_full:
                raise
            folder = absolute(self.folder)
            deleted = self.comm.bcast(self._on_worker_0(lambda: self.retention.apply(folder, last=1), _reading(folder)))
            if not deleted:
                raise
            note = f"{error} Deleted to make room: {', '.join(deleted)}."
        return replace(self._save(session, step), notes=(note,))

    def next_step(self) -> int:
        """The number after the highest that a checkpoint of the folder has, from 1; every worker must call it."""
        folder = absolute(self.folder)
        found = self._on_worker_0(lambda: listed(folder), _reading(folder))
        steps = [int(prefix.rpartition("-")[2]) for prefix in found or () if prefix.rpartition("-")[2].isdecimal()]
        return int(self.comm.bcast(max(steps, default=0) + 1))

    def _save(self, session: Session, step: int) -> Moved:
        began_s = time.monotonic()
        writer = Writer(absolute(self.folder), step, self.chunk_bytes, self.retention)
        self._on_worker_0(writer.begin, _writing(writer))
        total_bytes = largest_bytes = 0
        failed: FilesFailed | None = None
        for held in (*self.held, *self.beside):
            for first, count in chunks(held.stored.rows, held.stored.row_bytes, self.chunk_bytes):
                rows = held.read(session, first, count)
                if self.comm.Get_rank() or failed is not None:  # the others go on bringing rows, and hear at the end
                    continue
                size = int(getattr(rows, "nbytes", 0))
                total_bytes, largest_bytes = total_bytes + size, max(largest_bytes, size)
                try:
                    with _writing(writer):
                        writer.add(held.stored.key, held.stored.slice_spec(first, count), held.stored.dtype, rows)
                except FilesFailed as error:
                    failed = error

        def finish() -> None:
            if failed is not None:
                raise failed
            writer.finish()

        self._on_worker_0(finish, _writing(writer))  # the others wait: what they did next would find worker 0 missing
        largest_bytes = max(largest_bytes, writer.largest_bytes)
        return Moved(writer.prefix, total_bytes, largest_bytes, time.monotonic() - began_s)

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
        found = self.comm.bcast(self._on_worker_0(lambda: candidates(folder), _reading(folder)))
        skipped: list[str] = []
        for prefix in found:
            try:
                total_bytes, largest_bytes = self.read(session, prefix)
            except DamagedCheckpoint as error:
                skipped.append(f"Skipped {prefix}: {error}.")
            else:
                return Moved(prefix, total_bytes, largest_bytes, time.monotonic() - began_s, tuple(skipped))
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
            _check_fits(reader[0], prefix, [held.stored for held in self.held])
            for key in sorted({one.stored.key for one in self.beside} & reader[0].tensors.keys()):
                shape = reader[0].tensors[key].shape
                reader[0].read(key, (0,) * len(shape), shape)  # damage of it counts too; whoever needs it reads it
            return [_ranges(reader[0], held.stored, self.chunk_bytes) for held in self.held]

        ranges = self.comm.bcast(self._on_worker_0(opened, _reading(prefix)))
        total_bytes = largest_bytes = 0
        for held, own_ranges in zip(self.held, ranges, strict=True):
            for first, count in own_ranges:
                read = partial(_read, reader, held.stored, first, count)
                rows = self._on_worker_0(read, _reading(prefix))
                size = int(getattr(rows, "nbytes", 0))
                total_bytes, largest_bytes = total_bytes + size, max(largest_bytes, size)
                held.write(session, first, count, rows)
        return total_bytes, largest_bytes

    def _on_worker_0(self, do: Callable[[], Any], words: AbstractContextManager[None]) -> Any:
        """Does something with files on worker 0; all workers wait for it and raise what it raises.

        Returns:
            What it gives, on worker 0; None elsewhere.
        """
        found, failed = None, None
        if self.comm.Get_rank() == 0:
            try:
                with words:
                    found = do()
            except CheckpointError as error:
                failed = error
        barrier(self.comm)
        failed = self.comm.bcast(failed)
        if failed is not None:
            raise failed
        return found

    def _check_one_step(self, step: int) -> None:
        steps = self.comm.allgather(step)
        other = next((rank for rank, found in enumerate(steps) if found != steps[0]), None)
        if other is not None:
            raise CheckpointError(
                f"All workers must be at one global step when a checkpoint is written: worker 0 is at {steps[0]}, and "
                f"worker {other} at {steps[other]}. Run what changes the global step on all workers."
            )


@contextmanager
def _writing(writer: Writer) -> Iterator[None]:
    """Puts failures of files into words, and leaves nothing unfinished behind."""
    try:
        with file_errors(
            f"The checkpoint of step {writer.step} must be written to {writer.folder}",
            "Free space there, or name another folder in CheckPointConfig.ckpt_dir. The last checkpoint is untouched.",
        ):
            yield
    except CheckpointError:
        writer.discard()
        raise


def _reading(name: str) -> AbstractContextManager[None]:
    return file_errors(
        f"The checkpoint {name} must be readable on the machine of worker 0",
        "Give the folder to that machine, or name another one in CheckPointConfig.ckpt_dir.",
    )


def _read(reader: list[Bundle], stored: Stored, first: int, count: int) -> Any:
    [bundle] = reader
    shape = bundle.tensors[stored.key].shape
    return bundle.read(stored.key, *(((0,) * len(shape), shape) if stored.shape is None else stored.box(first, count)))


def _ranges(bundle: Bundle, stored: Stored, chunk_bytes: int) -> list[tuple[int, int]]:
    """The ranges of rows in which a variable is read, each from one stored piece."""
    if not stored.has_rows:
        return [(0, 1)]
    return bundle.ranges(stored.key, stored.offset[0], stored.rows, stored.row_bytes, chunk_bytes)


def _check_fits(bundle: Bundle, prefix: str, variables: list[Stored]) -> None:
    """Every variable of the graph must be in the checkpoint, with its shape and type.

    Raises:
        CheckpointError: that names the variables, and what graph and checkpoint have.
    """
    wrong = []
    for one in variables:
        found = bundle.tensors.get(one.key)
        if found is None:
            wrong.append(f"{one.key} {_shape(one.whole_shape)} of the graph is not in it")
        elif one.whole_shape is not None and found.shape != one.whole_shape:
            wrong.append(f"{one.key} is {_shape(one.whole_shape)} in the graph and {_shape(found.shape)} in it")
        elif found.dtype != one.dtype:
            wrong.append(f"{one.key} is {one.dtype} in the graph and {found.dtype} in it")
    if wrong:
        more = f"; and {len(wrong) - _MOST_NAMED} more" if len(wrong) > _MOST_NAMED else ""
        raise CheckpointError(
            f"The checkpoint {prefix} must hold all variables of the graph: {'; '.join(wrong[:_MOST_NAMED])}{more}. "
            "Train on with the graph that wrote it, or name another folder in CheckPointConfig.ckpt_dir."
        )


def _shape(shape: tuple[int, ...] | None) -> str:
    return str(list(shape)) if shape is not None else "of open shape"
