"""Writes one checkpoint collectively: all workers supply rows in chunks, and those that see its folder write them.

Worker 0 creates a folder with a random name for the files. Every other worker that finds the folder and may write there
leaves a marker file, which worker 0 detects. Each worker that left a marker writes ranges of the sharded rows into its
own files; if none did, worker 0 writes everything. Worker 0 also merges the files into one checkpoint and gives it its
final name.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from parallax.base.errors import CheckpointError
from parallax.base.types import Comm, Session
from parallax.runtime.checkpoint.format.chain import delete_others, delete_strays
from parallax.runtime.checkpoint.format.folder import NotWritten, file_errors, is_full, list_prefixes, reason
from parallax.runtime.checkpoint.format.folder_owner import FolderInUse
from parallax.runtime.checkpoint.format.links import Header
from parallax.runtime.checkpoint.format.writer import Writer
from parallax.runtime.checkpoint.rows.contents import Content, Contents
from parallax.runtime.checkpoint.rows.freeze import ImageFailure
from parallax.runtime.worker.barrier import barrier


class ImageLost(NotWritten):
    """The image from which a checkpoint was being written could not be read to its end."""


@dataclass(frozen=True, slots=True)
class CheckpointResult:
    """The result of one checkpoint, on worker 0; the other workers know the prefix only.

    Attributes:
        prefix: the checkpoint's name.
        moved_bytes: bytes of all variables.
        largest_bytes: the maximum of moved bytes that were in memory at once.
        seconds: how long it took.
        waited_s: how long of that training waited.
        copied_bytes: the maximum of memory that a worker held twice, because it wrote to it during the checkpoint.
        notes: checkpoints skipped as damaged, or deleted to make room, a sentence each.
        header: the checkpoint's header, on all workers; None if it has none.
        writers: the workers that wrote sharded rows; none if there are no such rows.
    """

    prefix: str
    moved_bytes: int = 0
    largest_bytes: int = 0
    seconds: float = 0.0
    waited_s: float = 0.0
    copied_bytes: int = 0
    notes: tuple[str, ...] = ()
    header: Header | None = None
    writers: tuple[int, ...] = ()


def write_contents(
    contents: Contents,
    comm: Comm,
    session: Session,
    writer: Writer,
    after_chunk: Callable[[], None] = lambda: None,
    loss: ImageFailure | None = None,
) -> CheckpointResult:
    """Writes a checkpoint; every worker must call it, and returns when it is done.

    Args:
        contents: of the checkpoint.
        comm: communicator of the workers.
        session: to read them with.
        writer: of the checkpoint, for this worker.
        after_chunk: called when this worker has supplied its rows of a chunk.
        loss: of the image that this worker reads; None if it reads variables.

    Raises:
        ImageLost: on all workers, when one of them could not read its image to the end.
        FilesFailed: on all workers, when the folder cannot be written. Earlier checkpoints are untouched.
    """
    began_s = time.monotonic()
    run_on_worker_0(comm, writer.begin, _writing(writer))
    writers = _writers(comm, writer) if contents.has_spread_rows else ()
    own = _WorkerFiles(comm, writer)
    for piece in contents.pieces(comm, session, writer.chunk_bytes, writers):
        after_chunk()
        own.write(piece)
    own.close()
    found = comm.allgather((own.error_text, own.parts, own.total_bytes, max(own.largest_bytes, writer.largest_bytes)))
    error_text = next(filter(None, (said for said, *_ in found)), None)
    losses = comm.allgather("" if loss is None else loss.reason)
    parts = [part for _, theirs, *_ in found[1:] for part in theirs]

    def finish() -> None:
        if error_text is not None:
            raise own.failed or OSError(error_text)
        _check_complete(losses, writer.step)
        _finish(writer, contents.header, parts)

    run_on_worker_0(comm, finish, _writing(writer))  # the others wait: their next call needs worker 0
    seconds = time.monotonic() - began_s
    return CheckpointResult(
        writer.prefix,
        sum(total_bytes for *_, total_bytes, _ in found),
        max(largest_bytes for *_, largest_bytes in found),
        seconds,
        seconds,
        notes=tuple(writer.notes),
        header=contents.header,
        writers=writers,
    )


def _check_complete(losses: Sequence[str], step: int) -> None:
    """Refuses a checkpoint with rows of a lost image.

    Args:
        losses: of each worker.
        step: of the checkpoint.
    """
    worker = next((rank for rank, reason in enumerate(losses) if reason), None)
    if worker is not None:
        raise ImageLost(
            f"The checkpoint of step {step} is skipped: worker {worker} could not read the copy of a process that it "
            f"is written from. {losses[worker]} When memory runs out, the kernel may kill such a copy first: save "
            "less often, or let training wait for checkpoints (CheckPointConfig.beside_training=False)."
        )


def _writers(comm: Comm, writer: Writer) -> tuple[int, ...]:
    """The workers that see the folder of a checkpoint and may write there; including worker 0, which has made it."""
    name = comm.bcast(writer.parts_name)
    with writer.watch_folder():
        has_signed = comm.Get_rank() == 0 or writer.register(name)
    signed = comm.allgather(has_signed)

    def join() -> list[int]:
        return [worker for worker, one in enumerate(signed) if one and (worker == 0 or writer.has_registered(worker))]

    return tuple(comm.bcast(run_on_worker_0(comm, join, _writing(writer))))


@dataclass
class _WorkerFiles:
    """The files that one worker writes of a checkpoint.

    After a file error it writes no more, but continues to supply rows, and all workers learn of the error at the end.
    If the disk is full, worker 0, which alone deletes files, makes room, and the write is retried.
    """

    comm: Comm
    writer: Writer
    parts: tuple[str, ...] = ()
    failed: Exception | None = None
    total_bytes: int = 0
    largest_bytes: int = 0
    _may_ask: bool = True

    @property
    def error_text(self) -> str | None:
        """Returns the error so far; None without one."""
        rank = self.comm.Get_rank()
        return None if self.failed is None else f"{reason(self.failed)}{f' (worker {rank})' if rank else ''}"

    def write(self, piece: Content) -> None:
        """Writes this worker's part of a piece; if the piece is distributed, every worker must call it."""
        size = int(getattr(piece.value, "nbytes", 0))
        self.total_bytes, self.largest_bytes = self.total_bytes + size, max(self.largest_bytes, size)

        def add() -> None:
            if piece.value is not None:
                self.writer.add(piece.key, piece.slice_spec, piece.dtype, piece.value)

        self._try(add)
        if piece.is_distributed:
            self._try_again(add)
        else:  # a piece of worker 0's, which has made room if it could
            self._may_ask = self.failed is None

    def close(self) -> None:
        """Closes this worker's files; every worker must call it."""

        def close() -> None:
            self.parts = self.writer.close()

        self._try(close)
        self._try_again(close)

    def _try(self, do: Callable[[], None]) -> None:
        if self.failed is not None:
            return
        try:
            with self.writer.watch_folder():
                do()
        except (tf.errors.OpError, OSError) as error:
            self.failed = error

    def _try_again(self, do: Callable[[], None]) -> None:
        """Retries after a full disk while worker 0 can make room; every worker must call it."""
        while True:
            asks = self.failed is not None and self._may_ask and is_full(self.failed)
            barrier(self.comm)
            disk_error = next(filter(None, self.comm.allgather(self.error_text if asks else None)), None)
            if disk_error is None:
                return
            with self.writer.watch_folder() if self.comm.Get_rank() == 0 else nullcontext():
                has_room = self.writer.make_room(OSError(disk_error)) if self.comm.Get_rank() == 0 else None
            has_room = self.comm.bcast(has_room)
            if asks and has_room:
                self.failed = None
                self._try(do)
            elif asks:
                self._may_ask = False


def _finish(writer: Writer, header: Header | None, parts: Sequence[str]) -> None:
    """Names a checkpoint, and deletes files that it makes obsolete; `parts` are the other workers'."""
    if header is not None and header.base:
        delete_others(writer.folder, header)
        writer.finish_files(parts)
        return
    writer.finish(parts)
    delete_strays(writer.folder, list_prefixes(writer.folder))


def run_on_worker_0(comm: Comm, do: Callable[[], Any], words: AbstractContextManager[None]) -> Any:
    """Executes a file operation on worker 0; all workers wait for it and raise its exception.

    Returns:
        Its result on worker 0; None elsewhere.
    """
    result, failed = None, None
    if comm.Get_rank() == 0:
        try:
            with words:
                result = do()
        except CheckpointError as error:
            failed = error
    barrier(comm)
    failed = comm.bcast(failed)
    if failed is not None:
        raise failed
    return result


def check_one_step(comm: Comm, step: int) -> None:
    """Requires all workers to be at the same step, because others' variables are inconsistent; a collective call.

    Raises:
        CheckpointError: on all workers, when they are not at the same step.
    """
    steps = comm.allgather(step)
    other = next((rank for rank, found in enumerate(steps) if found != steps[0]), None)
    if other is not None:
        raise CheckpointError(
            f"All workers must be at the same global step when a checkpoint is written, but worker 0 is at {steps[0]} "
            f"and worker {other} at {steps[other]}. Run the ops that change the global step on all workers."
        )


@contextmanager
def _writing(writer: Writer) -> Iterator[None]:
    """Context that describes failures of files, and leaves no unfinished files behind."""
    rule = f"Cannot write the checkpoint of step {writer.step} to {writer.folder}"
    remedy = "Free space there, or name another folder in CheckPointConfig.ckpt_dir. The previous checkpoint is intact."
    try:
        with writer.watch_folder(), file_errors(rule, remedy):
            yield
    except FolderInUse:  # unfinished files there may be another job's
        raise
    except CheckpointError:
        with writer.watch_folder():
            writer.discard()
        raise
