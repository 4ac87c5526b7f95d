"""Decides when workers write a checkpoint: at the start, at intervals of steps or seconds, and after a successful end.

In synchronous training all workers must begin to write after the same run, and no run of a single worker may count. So
only training runs count: those that take part in collectives, which all workers run together, and that write the global
step, but no runs of hooks or `raw_session()`. After such a run all workers have the same global step. With an interval
in steps, each worker knows by itself what the others do. With an interval in seconds, worker 0's clock decides, and
worker 0 informs the others after each such run. If the last step is already saved at a successful end, no worker waits.

Asynchronous workers are at different steps. Worker 0 decides, calls the others, and waits until each has ended its run;
they resume training when all variables are frozen, so that weights and slots are consistent.

Checkpoints that fall due while a job trains are written during training (concurrent_checkpoints.py) where possible: the
workers pause while the variables are frozen, or while the previous checkpoint is still being written. At the start and
at the end they pause until everything is written. A preempted job saves after a run on which the workers agree
(worker/preemption.py), and ends.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, NoReturn

import tensorflow as tf

from parallax.base.types import Comm, Coordinator, RunContext, RunValues, Session
from parallax.report.logger import log
from parallax.report.text import bytes_text
from parallax.runtime.checkpoint.checkpoints import Checkpoints
from parallax.runtime.checkpoint.collective_write import CheckpointResult
from parallax.runtime.checkpoint.format.folder import NotWritten
from parallax.runtime.checkpoint.format.links import Header
from parallax.runtime.checkpoint.step_runs import StepRuns
from parallax.runtime.supervisor.control import tell_saved
from parallax.runtime.worker.barrier import barrier
from parallax.runtime.worker.polling import has_message
from parallax.runtime.worker.preemption import Preemption
from parallax.runtime.worker.session.run_context import WorkerContext
from parallax.runtime.worker.session.session_parts import MeetingSchedule

v1 = tf.compat.v1
_CALL_POLL_S = 0.02
_LOG = logging.getLogger("parallax.checkpoint")


@dataclass(eq=False)  # TensorFlow keeps hooks in dicts
class CheckpointHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Writes checkpoints around the runs of a session.

    Attributes:
        checkpoints: of this job.
        worker: the worker whose runs are inspected.
        meetings: of the islands, after which checkpoints are written; None where all workers train together.
        begins_with_values: whether variables have their starting values when the session is made; those of a front end
            do not, and the first checkpoint is written when it is due.
    """

    checkpoints: Checkpoints
    worker: WorkerContext
    begins_with_values: bool = True
    meetings: MeetingSchedule | None = None
    is_patient: ClassVar[bool] = False
    _saved_step: int = -1
    _is_missing: bool = False  # the initial state could not be written
    _warned: set[str] = field(default_factory=set)  # kinds of warnings that are logged once
    _saved_s: float = 0.0
    _writers: tuple[int, ...] = ()  # the writers logged last
    _preemption: Preemption = field(init=False)
    _runs: StepRuns = field(init=False)

    def __post_init__(self) -> None:
        self._runs = StepRuns(self.worker, self.checkpoints.step_op, self.checkpoints.storage.comm)

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """Writes the initial state, unless it has just been loaded."""
        self._preemption = Preemption(self.checkpoints.storage.comm)
        if self.checkpoints.positions is not None:
            self.checkpoints.positions.begin_again(session)
        if self.checkpoints.loaded_step is None:
            if self.begins_with_values:
                self._save(session, self._step(session), may_fail=False)
            else:
                self._note_saved(self._step(session))
            return
        self._note_saved(self.checkpoints.loaded_step)
        if self.checkpoints.positions is not None:
            self.checkpoints.positions.put(session)

    def after_run(self, run_context: RunContext, run_values: RunValues) -> None:
        """Writes a checkpoint when it is due."""
        self._look()
        if not self._runs.has_trained():
            return
        has_met = self.meetings is None or self.meetings.count_update()
        if self.worker.run is not None:
            self.worker.count(self.worker.run)  # it is in the checkpoint
        session, config = self.worker.raw, self.checkpoints.config
        if self.checkpoints.positions is not None and self.worker.accumulation.steps > 1:
            self.checkpoints.positions.put(session)  # where to resume when the loop ends between updates
        if config.save_ckpt_steps is None and config.save_ckpt_secs is None:
            return
        step = self._step(session)
        if has_met and self._is_due(step):
            self._save(session, step)
        if self._preemption.is_now():
            self._leave(session, step)

    def end(self, session: Session) -> None:
        """Writes the final state after success, when all workers have reached their end."""
        step = self._step(session)
        self._wait(is_due=False)
        last = self.checkpoints.succession.last
        is_increment = last is not None and bool(last.base)  # a successful end leaves a full checkpoint
        if step == self._saved_step and not self._is_missing and not is_increment:
            return
        # One worker may evaluate long after the others have ended, so this waits without limit for running workers.
        with self.worker.watch.run("the last checkpoint", "checkpoint, end", patient=True):
            barrier(self.checkpoints.storage.comm)
        if self.meetings is not None:
            self.meetings.meet()
        self._save(session, step, may_fail=False, is_between=bool(self.worker.accumulation.pending))

    def _save(
        self,
        session: Session,
        step: int,
        may_fail: bool = True,
        is_between: bool = False,
        must_be_whole: bool | None = None,
    ) -> None:
        """Writes a checkpoint; during training a failed write is a warning, and training continues.

        Between updates (`is_between`) it has the positions of the last update: batches of no update are read again. A
        write that may not fail is full by default.
        """
        storage, concurrent = self.checkpoints.storage, self.checkpoints.concurrent
        self._wait(is_due=may_fail)
        following = partial(self.checkpoints.succession.following, step, storage.comm)
        is_whole = not may_fail if must_be_whole is None else must_be_whole
        header = following(is_whole or not storage.marks.tables)
        self._is_missing = False
        if self.checkpoints.positions is not None and not is_between:
            self.checkpoints.positions.put(session)
        with self.worker.watch.run(f"checkpoint of step {step}", f"checkpoint, {step}", patient=self.is_patient):
            refusal = concurrent.begin(session, step, header) if concurrent is not None and may_fail else None
            if refusal:
                header = following(must_be_whole=True)  # touched rows are reset
            if refusal != "":
                self._process_result(step, lambda: self._save_blocking(session, step, header), may_fail)
        if refusal:
            self._warn_once("Training waits while checkpoints are written", f": variables cannot be frozen {refusal}")
        self._note_saved(step)

    def _save_blocking(self, session: Session, step: int, header: Header | None) -> CheckpointResult:
        """Writes a checkpoint while all workers wait, and reports it to the launcher."""
        storage = self.checkpoints.storage
        moved = storage.save(session, step, header)
        if storage.comm.Get_rank() == 0:
            tell_saved(step)
        return moved

    def _process_result(self, step: int, result: Callable[[], CheckpointResult], may_fail: bool) -> None:
        """Processes the result of the checkpoint of a step."""
        try:
            moved = result()
        except NotWritten as error:
            self.checkpoints.succession.note_failure()
            if not may_fail:
                raise
            self._is_missing = True
            notes: tuple[str, ...] = (f"{error} Training continues; the next checkpoint is tried when it is due.",)
        else:
            notes = moved.notes
            self.checkpoints.succession.last, self.checkpoints.saved_step = moved.header, step
            self._tell_writers(moved.writers)
            _LOG.info(
                "Written: %s, %s in %.1f s, of which training waited %.3f s; %s of memory were duplicated",
                *(moved.prefix, bytes_text(moved.moved_bytes), moved.seconds, moved.waited_s),
                bytes_text(moved.copied_bytes),
            )
        for note in notes if self.checkpoints.storage.comm.Get_rank() == 0 else ():
            _LOG.warning("%s", note)

    def _tell_writers(self, writers: tuple[int, ...]) -> None:
        """Logs the workers that write sharded rows, once and after each change."""
        if writers in ((), self._writers):
            return
        storage, self._writers = self.checkpoints.storage, writers
        size = storage.comm.Get_size()
        if storage.comm.Get_rank() or size == 1:
            return
        others = [rank for rank in range(size) if rank not in writers]
        log.info(
            f"Sharded rows of checkpoints are written by {_workers(writers)}: {_workers(others)} cannot write to "
            f"{storage.folder} as worker 0 sees it."
            if others
            else f"Sharded rows of checkpoints are written by all {size} workers, each its share."
        )

    def _look(self) -> None:
        """Processes the result of a checkpoint during training, once it has ended."""
        concurrent = self.checkpoints.concurrent
        if concurrent is not None and concurrent.step is not None and not concurrent.is_writing:
            self._process_result(concurrent.step, concurrent.pop_result, may_fail=True)

    def _wait(self, is_due: bool = True) -> None:
        """Waits for the checkpoint in progress, if there is one; every worker must call it."""
        concurrent = self.checkpoints.concurrent
        if concurrent is not None and concurrent.is_writing:
            step = concurrent.step
            with self.worker.watch.run(f"checkpoint of step {step}, written", f"checkpoint, {step}, w", patient=True):
                waited_s = concurrent.join()
            if is_due:
                self._warn_once(
                    "The next checkpoint was due",
                    f" while that of step {step} was still being written, and training waited {waited_s:.1f} s for it. "
                    "Save less often, or write to a faster disk.",
                )
        self._look()

    def _warn_once(self, kind: str, more: str) -> None:
        if kind not in self._warned and self.checkpoints.storage.comm.Get_rank() == 0:
            self._warned.add(kind)
            _LOG.warning("%s%s", kind, more)

    def _leave(self, session: Session, step: int) -> NoReturn:
        """Writes the state of a preempted job, as an increment if it writes these, and ends the job."""
        self._wait(is_due=False)
        if self.meetings is not None:
            self.meetings.meet()
        if step != self._saved_step or self._is_missing:
            self._save(session, step, may_fail=False, must_be_whole=False)
        self._preemption.leave(step)

    def _note_saved(self, step: int) -> None:
        self._saved_step, self._saved_s = step, time.monotonic()

    def _step(self, session: Session) -> int:
        return int(session.run(self.checkpoints.step))

    def _is_due(self, step: int) -> bool:
        """Whether a checkpoint is due now; equal on all workers."""
        config, comm = self.checkpoints.config, self.checkpoints.storage.comm
        by_steps = config.save_ckpt_steps is not None and step >= self._saved_step + config.save_ckpt_steps
        if config.save_ckpt_secs is None:
            return by_steps
        by_seconds = comm.bcast(time.monotonic() - self._saved_s >= config.save_ckpt_secs)
        return step != self._saved_step and (by_steps or bool(by_seconds))


@dataclass(eq=False)
class AsynchronousCheckpointHook(CheckpointHook):
    """Writes checkpoints while workers train asynchronously: worker 0 calls, and the others join after their runs."""

    is_patient: ClassVar[bool] = True  # however long another worker's run takes
    _ending: Comm = None

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """Writes the initial state, unless it has just been loaded."""
        # Collectives of one communicator must start in one order on all workers, and the order in which workers end is
        # unknown.
        self._ending = self.checkpoints.storage.comm.Dup()
        self._preemption = Preemption(self.checkpoints.storage.comm)
        if self.checkpoints.loaded_step is None:
            self._save(session, self.checkpoints.storage.comm.bcast(self._step(session)), may_fail=False)
        else:
            self._note_saved(self.checkpoints.loaded_step)

    def after_run(self, run_context: RunContext, run_values: RunValues) -> None:
        """On worker 0, calls the others when a checkpoint is due; elsewhere, joins after a call."""
        self._look()
        comm, session = self.checkpoints.storage.comm, self.worker.raw
        if comm.Get_rank():
            self.join(session)
            return
        config, step = self.checkpoints.config, self._step(session)
        by_steps = config.save_ckpt_steps is not None and step >= self._saved_step + config.save_ckpt_steps
        seconds = time.monotonic() - self._saved_s
        by_seconds = config.save_ckpt_secs is not None and seconds >= config.save_ckpt_secs
        if step != self._saved_step and (by_steps or by_seconds):
            for rank in range(1, comm.Get_size()):
                comm.send(step, rank)
            self._save(session, step)
        if self._preemption.is_notified():
            self._preemption.call(step)
            self._leave(session, step)

    def end(self, session: Session) -> None:
        """Writes the final state after success, when all workers have reached their end."""
        comm = self.checkpoints.storage.comm
        with self.worker.watch.run("the last checkpoint", "checkpoint, end", patient=True):
            arrived = self._ending.Ibarrier()
            while not arrived.Test():
                self.join(session)
                time.sleep(_CALL_POLL_S)
        self._save(session, comm.bcast(self._read_step(session)), may_fail=False)

    def join(self, session: Session) -> None:
        """Takes part in a checkpoint that worker 0 has called for, if it has called for any."""
        comm = self.checkpoints.storage.comm
        if comm.Get_rank() and has_message(comm, 0):
            self._save(session, comm.recv(source=0))
        called = self._preemption.read_call()
        if called is not None:
            self._leave(session, called)

    def _read_step(self, session: Session) -> int:
        """The servers' step; a worker's own copy is as old as its last run."""
        storage = self.checkpoints.storage
        variable = next(h for h in storage.variables if h.stored.op == self.checkpoints.step_op)
        return int(variable.read(session, 0, 1)) if storage.comm.Get_rank() == 0 else 0


def _workers(ranks: Sequence[int]) -> str:
    return f"worker{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
