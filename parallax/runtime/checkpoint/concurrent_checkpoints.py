"""Writes checkpoints during training: variables are frozen in an image, which a thread of each worker writes out.

The workers pause until each has frozen its part of the image. The threads have their own communicator, so their
collectives never interact with those of the training loop. One checkpoint is written at a time. The training loop
collects its result.
"""

from __future__ import annotations

import threading
import time
import uuid
from dataclasses import dataclass, field, replace

import tensorflow as tf

from parallax.base.errors import CheckpointError
from parallax.base.types import Comm, Session
from parallax.runtime.checkpoint.checkpoint_io import Storage
from parallax.runtime.checkpoint.collective_write import CheckpointResult, check_one_step, write_contents
from parallax.runtime.checkpoint.format.links import Header
from parallax.runtime.checkpoint.rows.freeze import CannotFreeze, Freezer, Image, freezer
from parallax.runtime.supervisor.control import tell_saved

_LOOK_S = 0.5  # interval of measuring the copied memory, which takes some milliseconds


@dataclass
class _InProgress:
    """A checkpoint in progress."""

    step: int
    header: Header | None
    image: Image
    waited_s: float
    thread: threading.Thread | None = None
    moved: CheckpointResult | None = None
    failed: BaseException | None = None
    copied_bytes: int = 0
    observed_s: float = field(default_factory=time.monotonic)

    def poll(self) -> None:
        """Measures the copied memory at intervals."""
        if time.monotonic() - self.observed_s >= _LOOK_S:
            self.copied_bytes, self.observed_s = max(self.copied_bytes, self.image.copied_bytes()), time.monotonic()


@dataclass
class ConcurrentCheckpoints:
    """Writes a job's checkpoints during training, one worker's part in it.

    Attributes:
        storage: the variables and their folder.
        comm: a communicator of the workers for the threads alone.
        freezer: makes images of the variables; or the reason why there can be none.
    """

    storage: Storage
    comm: Comm
    freezer: Freezer | str
    _writes: _InProgress | None = None

    def begin(self, session: Session, step: int, header: Header | None = None) -> str:
        """Freezes all variables and starts to write them; every worker must call it, while none is in progress.

        Touched rows are reset, also on failure.

        Args:
            session: TensorFlow's session on the worker's graph.
            step: the global step.
            header: as in `Storage.save`.

        Returns:
            Why freezing is impossible, on any worker; empty when writing has started.

        Raises:
            CheckpointError: on all workers, when they are not at the same step.
        """
        began_s = time.monotonic()
        check_one_step(self.storage.comm, step)
        image, refusal = self._image(session, self.storage.comm.bcast(f"checkpoint {uuid.uuid4().hex}"))
        if image is not None:
            self.storage.marks.forget(session)
        refusals = self.storage.comm.allgather(refusal)  # also a barrier: no worker trains before all have frozen
        worker = next((rank for rank, reason in enumerate(refusals) if reason), None)
        if worker is not None or image is None:
            if image is not None:
                image.thaw()
            return f"on worker {worker}: {refusals[worker or 0]}"
        self._writes = one = _InProgress(step, header, image, time.monotonic() - began_s)
        one.thread = threading.Thread(target=self._write, args=(one,), name=f"checkpoint of step {step}", daemon=True)
        one.thread.start()
        return ""

    @property
    def step(self) -> int | None:
        """The step of the checkpoint in progress, or of one whose result is not collected yet; None without one."""
        return None if self._writes is None else self._writes.step

    @property
    def is_writing(self) -> bool:
        """Whether this worker still supplies or writes rows."""
        return self._writes is not None and self._writes.thread is not None and self._writes.thread.is_alive()

    def switch_variables(self, storage: Storage) -> None:
        """Switches to other variables; builds the ops for them in the default graph, a worker's."""
        self.join()
        self.storage, self.freezer = storage, _freezer(storage)

    def join(self) -> float:
        """Waits until writing has ended; returns the seconds waited."""
        began_s = time.monotonic()
        if self._writes is None or self._writes.thread is None:
            return 0.0
        self._writes.thread.join()
        waited_s = time.monotonic() - began_s
        self._writes.waited_s += waited_s
        return waited_s

    def pop_result(self) -> CheckpointResult:
        """Returns the result of a checkpoint, when writing has ended.

        Raises:
            NotWritten: on all workers, when the folder cannot be written, or the image was lost on some worker.
            CheckpointError: when it failed in another way on this worker; on all, when another job has the folder.
        """
        one, self._writes = self._writes, None
        if one is None:
            raise CheckpointError("There is no result: no checkpoint was begun since the last one was returned.")
        if one.moved is not None:
            return replace(one.moved, waited_s=one.waited_s, copied_bytes=one.copied_bytes)
        if isinstance(one.failed, CheckpointError):
            raise one.failed
        raise CheckpointError(
            f"The checkpoint of step {one.step} could not be written during training: {type(one.failed).__name__}: "
            f"{one.failed}"
        ) from one.failed

    def _write(self, one: _InProgress) -> None:
        """Body of the thread: no error of it may be lost, so the loop raises them."""
        try:
            one.moved = self._write_state(one)
        except BaseException as error:
            one.failed = error

    def _write_state(self, one: _InProgress) -> CheckpointResult:
        storage = self.storage
        writer = storage.writer(one.step, one.header, storage.chunk_bytes)
        contents = storage.marks.contents(one.image.variables, one.header)
        try:
            moved = write_contents(contents, self.comm, one.image.session, writer, one.poll, one.image.loss)
        finally:
            one.image.thaw()
        if self.comm.Get_rank() == 0:
            tell_saved(one.step)
        one.copied_bytes = max(self.comm.gather(one.copied_bytes) or [one.copied_bytes])
        return moved

    def _image(self, session: Session, name: str) -> tuple[Image | None, str]:
        """Returns the image, or why there is none."""
        if isinstance(self.freezer, str):
            return None, self.freezer
        try:
            return self.freezer.freeze(session, self.comm, name), ""
        except CannotFreeze as error:
            return None, str(error)


def prepare_concurrent_checkpoints(storage: Storage) -> ConcurrentCheckpoints:
    """Adds the ops for checkpoints during training to the default graph, a worker's; every worker must call it."""
    return ConcurrentCheckpoints(storage, storage.comm.Dup(), _freezer(storage))


def _freezer(storage: Storage) -> Freezer | str:
    from mpi4py import MPI

    if MPI.Query_thread() != MPI.THREAD_MULTIPLE:
        return "MPI was started without MPI_THREAD_MULTIPLE, and so takes no calls of a thread of its own."
    if tf.config.list_physical_devices("GPU"):
        return "the memory of GPUs is not frozen."
    return freezer(storage.everything, storage.comm)
