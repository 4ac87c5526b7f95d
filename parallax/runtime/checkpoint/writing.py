"""Writes one checkpoint with all workers: they bring rows in chunks, and worker 0 has the files."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from parallax.errors import CheckpointError
from parallax.runtime.checkpoint.chain import delete_others, delete_strays
from parallax.runtime.checkpoint.contents import Contents
from parallax.runtime.checkpoint.folder import FilesFailed, file_errors, listed
from parallax.runtime.checkpoint.links import Header
from parallax.runtime.checkpoint.writer import Writer
from parallax.runtime.worker.barrier import barrier
from parallax.types import Comm, Session


@dataclass(frozen=True, slots=True)
class Moved:
    """What came of one checkpoint, on worker 0; the other workers know the prefix only.

    Attributes:
        prefix: the checkpoint's name.
        moved_bytes: bytes of all variables.
        largest_bytes: the most that was held at once of what was moved.
        seconds: how long it took.
        waited_s: how long of that training waited.
        copied_bytes: the most memory that a worker held twice, as it had written it while the checkpoint was written.
        notes: what was skipped as it was damaged, or deleted to make room, a sentence each.
        header: what the checkpoint says of itself, on all workers; None where it says nothing.
    """

    prefix: str
    moved_bytes: int = 0
    largest_bytes: int = 0
    seconds: float = 0.0
    waited_s: float = 0.0
    copied_bytes: int = 0
    notes: tuple[str, ...] = ()
    header: Header | None = None


def write_contents(
    contents: Contents,
    comm: Comm,
    session: Session,
    writer: Writer,
    after_chunk: Callable[[], None] = lambda: None,
) -> Moved:
    """Writes a checkpoint; every worker must call it, and returns when it is done.

    Args:
        contents: what it has.
        comm: communicator of the workers.
        session: to read them with.
        writer: of the checkpoint, on worker 0; no file is touched on the others.
        after_chunk: is called when this worker has brought its rows of a chunk.

    Raises:
        FilesFailed: on all workers, when the folder cannot be written. The checkpoints before are untouched.
    """
    began_s = time.monotonic()
    on_worker_0(comm, writer.begin, _writing(writer))
    total_bytes = largest_bytes = 0
    failed: FilesFailed | None = None
    for piece in contents.pieces(comm, session, writer.chunk_bytes):
        after_chunk()
        if comm.Get_rank() or failed is not None:  # the others go on bringing rows, and hear at the end
            continue
        size = int(getattr(piece.value, "nbytes", 0))
        total_bytes, largest_bytes = total_bytes + size, max(largest_bytes, size)
        try:
            with _writing(writer):
                writer.add(*piece)
        except FilesFailed as error:
            failed = error

    def finish() -> None:
        if failed is not None:
            raise failed
        _finish(writer, contents.header)

    on_worker_0(comm, finish, _writing(writer))  # the others wait: what they did next would find worker 0 missing
    largest_bytes = max(largest_bytes, writer.largest_bytes)
    seconds = time.monotonic() - began_s
    return Moved(
        writer.prefix,
        total_bytes,
        largest_bytes,
        seconds,
        seconds,
        notes=tuple(writer.notes),
        header=contents.header,
    )


def _finish(writer: Writer, header: Header | None) -> None:
    """Gives a checkpoint its name, and deletes what can no longer be read with any."""
    if header is not None and header.base:
        delete_others(writer.folder, header)
        writer.finish_files()
        return
    writer.finish()
    delete_strays(writer.folder, listed(writer.folder))


def on_worker_0(comm: Comm, do: Callable[[], Any], words: AbstractContextManager[None]) -> Any:
    """Does something with files on worker 0; all workers wait for it and raise what it raises.

    Returns:
        What it gives, on worker 0; None elsewhere.
    """
    found, failed = None, None
    if comm.Get_rank() == 0:
        try:
            with words:
                found = do()
        except CheckpointError as error:
            failed = error
    barrier(comm)
    failed = comm.bcast(failed)
    if failed is not None:
        raise failed
    return found


def check_one_step(comm: Comm, step: int) -> None:
    """Workers at different steps have variables that do not belong together; every worker must call it.

    Raises:
        CheckpointError: on all workers, when they are not at one step.
    """
    steps = comm.allgather(step)
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
