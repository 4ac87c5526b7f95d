"""When the workers write a checkpoint: at the start, every so many steps or seconds of training, and at a good end.

In synchronous training all workers must begin to write after the same run, and no run of one worker alone may come into
it. So only runs that train are looked at: those that take part in collectives, which all workers run together, and that
write the global step; not those of hooks or `raw_session()`. After such a run all workers have the same global step,
and by steps each knows by itself what the others do. By seconds worker 0's clock decides, and tells the others after
each such run. At a good end whose step is already saved nobody waits.

Asynchronous workers are at different steps. Worker 0 decides, calls the others, and waits until each has ended its run;
they train on when all variables are frozen, so that weights and slots belong together.

What is due while a job trains is written beside training (beside_training.py), as far as that can be: the workers stand
while the variables are frozen, or while the checkpoint before is still being written. At the start and at the end they
stand until all is written.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import tensorflow as tf

from parallax.errors import ConfigError
from parallax.graph.view import GraphView, split_tensor
from parallax.logger import log
from parallax.report.show import show
from parallax.report.text import bytes_text
from parallax.runtime.checkpoint.beside_training import BesideTraining, beside_training
from parallax.runtime.checkpoint.folder import FilesFailed, Retention
from parallax.runtime.checkpoint.held import Places, hold
from parallax.runtime.checkpoint.storage import Storage
from parallax.runtime.checkpoint.stored import CHUNK_BYTES, stored_variables, variable_op
from parallax.runtime.checkpoint.touched import Marks, Succession, hold_marks
from parallax.runtime.checkpoint.writing import Moved
from parallax.runtime.worker.barrier import barrier
from parallax.runtime.worker.hooks import WorkerContext
from parallax.settings.parts import CheckPointConfig
from parallax.transform.passes.touched_rows import NO_ROW_MEMORY, RowMemory
from parallax.types import Comm, Coordinator, Graph, RunContext, RunValues, Session

v1 = tf.compat.v1
_CALL_POLL_S = 0.02
_LOG = logging.getLogger("parallax.checkpoint")
_PASSES_ON = ("Enter", "RefEnter", "Switch", "RefSwitch", "RefIdentity", "Identity")
_WRITES = ("Assign", "Scatter", "ResourceScatter", "CountUpTo", "ResourceCountUpTo")
_TAKES_ALONG = ("If", "StatelessIf", "While", "StatelessWhile", "Case", "PartitionedCall", "StatefulPartitionedCall")


def check_global_step(graph: Graph, config: CheckPointConfig) -> None:
    """Checkpoints are named by the global step.

    Raises:
        ConfigError: when checkpoints are wanted and the graph has none.
    """
    if config.ckpt_dir is None:
        return
    if v1.train.get_global_step(graph) is None:
        raise ConfigError(
            f"CheckPointConfig.ckpt_dir is {str(config.ckpt_dir)!r}, and checkpoints are named by the global step, "
            "which the graph has not. Call tf.train.get_or_create_global_step() while you build it, and give it to the "
            "optimizer: minimize(loss, global_step=...)."
        )


@dataclass
class Checkpoints:
    """The checkpoints of one job, as one worker takes part in them.

    Attributes:
        config: where and when.
        storage: writes and reads.
        step: tensor of the global step in the worker's graph.
        step_op: the op of the user's graph that holds it.
        succession: whole checkpoints and increments.
        beside: writes beside training; None where training waits.
        loaded_step: the step that the session was resumed at; None for a start from initial values.
    """

    config: CheckPointConfig
    storage: Storage
    step: Any
    step_op: str
    succession: Succession = field(default_factory=lambda: Succession(1))
    beside: BesideTraining | None = None
    loaded_step: int | None = None

    def hold(self, graph: Graph, places: Places) -> None:
        """Goes by other places from now on; builds what that needs in the default graph, a worker's.

        Checkpoints are whole from then on.
        """
        held = hold(stored_variables(graph), places, self.storage.comm)
        self.storage = replace(self.storage, held=held, marks=Marks())  # the new places do not remember rows
        self.step = _value(graph, places.here(self.step_op))
        if self.beside is not None:
            self.beside.hold(self.storage)

    def finish(self) -> None:
        """Waits until nothing is written any more: no thread may be in MPI when the process leaves."""
        if self.beside is not None:
            self.beside.join()

    def load(self, session: Session) -> None:
        """Loads the latest checkpoint, if there is one; every worker must call it."""
        moved = self.storage.load(session)
        if moved is not None:
            self.loaded_step = int(session.run(self.step))
            self.succession.last = moved.header
            if self.storage.comm.Get_rank() == 0:
                notes = "".join(f"{note}\n" for note in moved.notes)
                show(f"{notes}Resumed from step {self.loaded_step}: {moved.prefix}\n")
            _LOG.info("Read: %s", moved)


def checkpoints(
    graph: Graph, places: Places, config: CheckPointConfig, comm: Comm, touched: RowMemory = NO_ROW_MEMORY
) -> Checkpoints:
    """Adds what checkpoints need to the default graph, a worker's.

    Args:
        graph: the user's graph.
        places: where the rows of its variables are.
        config: has a folder.
        comm: communicator of the workers.
        touched: which rows are remembered for increments.
    """
    check_global_step(graph, config)
    stored = stored_variables(graph)
    held, marks = hold(stored, places, comm), hold_marks(touched, stored, places, comm)
    if config.whole_every > 1 and comm.Get_rank() == 0:
        log.info(marks.told(touched))
    op = variable_op(v1.train.get_global_step(graph))
    retention = Retention(config.keep_last, config.keep_every_hours)
    storage = Storage(str(config.ckpt_dir), held, comm, CHUNK_BYTES, retention, marks)
    beside = beside_training(storage) if config.beside_training else None
    return Checkpoints(config, storage, _value(graph, places.here(op)), op, Succession(config.whole_every), beside)


def _value(graph: Graph, op: str) -> Any:
    """The value of the global step, which `op` holds in the default graph."""
    handle = v1.get_default_graph().get_tensor_by_name(f"{op}:0")
    with tf.name_scope("parallax/storage/"):
        if handle.dtype == tf.resource:
            dtype = v1.train.get_global_step(graph).dtype.base_dtype
            return tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
        return tf.identity(handle)


@dataclass(eq=False)  # TensorFlow keeps hooks in dicts
class CheckpointHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Writes checkpoints around the runs of a session.

    Attributes:
        checkpoints: of this job.
        worker: whose runs are looked at.
    """

    checkpoints: Checkpoints
    worker: WorkerContext
    is_patient: ClassVar[bool] = False
    _saved_step: int = -1
    _is_missing: bool = False  # what was to be saved then could not be written
    _warned: set[str] = field(default_factory=set)  # kinds of warnings that come once
    _saved_s: float = 0.0
    _trains: dict[tuple[tuple[str, ...], frozenset[str]], bool] = field(default_factory=dict)
    _names: Any = None  # of the plan that these are known for
    _step_writers: frozenset[str] = frozenset()

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """Writes the state at the start, unless it has just been read."""
        if self.checkpoints.loaded_step is None:
            self._save(session, self._step(session), may_fail=False)
        else:
            self._saved(self.checkpoints.loaded_step)

    def after_run(self, run_context: RunContext, run_values: RunValues) -> None:
        """Writes a checkpoint when it is time."""
        self._look()
        config = self.checkpoints.config
        if (config.save_ckpt_steps is None and config.save_ckpt_secs is None) or not self._has_trained():
            return
        session = self.worker.raw
        step = self._step(session)
        if self._is_due(step):
            self._save(session, step)

    def end(self, session: Session) -> None:
        """Writes the state at a good end, when all workers have come to theirs."""
        step = self._step(session)
        self._wait(is_due=False)
        last = self.checkpoints.succession.last
        is_increment = last is not None and bool(last.base)  # a good end leaves a whole one
        if step == self._saved_step and not self._is_missing and not is_increment:
            return
        # One worker may evaluate long after the others have ended, so this waits without limit for those who still run.
        with self.worker.watch.run("the last checkpoint", "checkpoint, end", patient=True):
            barrier(self.checkpoints.storage.comm)
        self._save(session, step, may_fail=False)

    def _save(self, session: Session, step: int, may_fail: bool = True) -> None:
        """Writes a checkpoint; while a job trains, one that cannot be written is a warning, and training goes on."""
        storage, beside = self.checkpoints.storage, self.checkpoints.beside
        self._wait(is_due=may_fail)
        following = partial(self.checkpoints.succession.following, step, storage.comm)
        header = following(not may_fail or not storage.marks.held)
        self._is_missing = False
        with self.worker.watch.run(f"checkpoint of step {step}", f"checkpoint, {step}", patient=self.is_patient):
            refusal = beside.begin(session, step, header) if beside is not None and may_fail else None
            if refusal:
                header = following(must_be_whole=True)  # touched rows are forgotten
            if refusal != "":
                self._take(lambda: storage.save(session, step, header), may_fail)
        if refusal:
            self._warn_once("Training waits while checkpoints are written", f": variables cannot be frozen {refusal}")
        self._saved(step)

    def _take(self, result: Callable[[], Moved], may_fail: bool) -> None:
        """Takes in what came of a checkpoint."""
        try:
            moved = result()
        except FilesFailed as error:
            self.checkpoints.succession.failed()
            if not may_fail:
                raise
            self._is_missing = True
            notes: tuple[str, ...] = (f"{error} Training goes on; the next checkpoint is tried at its time.",)
        else:
            notes = moved.notes
            self.checkpoints.succession.last = moved.header
            _LOG.info(
                "Written: %s, %s in %.1f s, of which training waited %.3f s; %s of memory were held twice",
                *(moved.prefix, bytes_text(moved.moved_bytes), moved.seconds, moved.waited_s),
                bytes_text(moved.copied_bytes),
            )
        for note in notes if self.checkpoints.storage.comm.Get_rank() == 0 else ():
            _LOG.warning("%s", note)

    def _look(self) -> None:
        """Takes in what came of a checkpoint beside training, once it has ended."""
        beside = self.checkpoints.beside
        if beside is not None and beside.step is not None and not beside.is_writing:
            self._take(beside.take, may_fail=True)

    def _wait(self, is_due: bool = True) -> None:
        """Waits for the checkpoint that is being written, if there is one; every worker must call it."""
        beside = self.checkpoints.beside
        if beside is not None and beside.is_writing:
            step = beside.step
            with self.worker.watch.run(f"checkpoint of step {step}, written", f"checkpoint, {step}, w", patient=True):
                waited_s = beside.join()
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

    def _saved(self, step: int) -> None:
        self._saved_step, self._saved_s = step, time.monotonic()

    def _step(self, session: Session) -> int:
        return int(session.run(self.checkpoints.step))

    def _is_due(self, step: int) -> bool:
        """Whether to write now; equal on all workers."""
        config, comm = self.checkpoints.config, self.checkpoints.storage.comm
        by_steps = config.save_ckpt_steps is not None and step >= self._saved_step + config.save_ckpt_steps
        if config.save_ckpt_secs is None:
            return by_steps
        by_seconds = comm.bcast(time.monotonic() - self._saved_s >= config.save_ckpt_secs)
        return step != self._saved_step and (by_steps or bool(by_seconds))

    def _has_trained(self) -> bool:
        """Whether the run that has just ended is one that all workers ran together, and writes the global step."""
        run = self.worker.run
        if run is None or run.gather is not None:
            return False
        names, fed = (*run.names, *run.hook_names), frozenset(run.fed)
        known = self.worker.names
        if known is not self._names:
            self._names, self._trains = known, {}
            self._step_writers = _writers(known.run_view, known.here(self.checkpoints.step_op))
        if (names, fed) not in self._trains:
            resolved = known.resolve(names, fed)
            cut_off = frozenset(known.here(name) for name in fed)
            alone = self.checkpoints.storage.comm.Get_size() == 1
            nodes = known.run_view.ancestors(
                {split_tensor(t)[0] if ":" in t else t for t in resolved.tensors if t not in cut_off}, cut_off
            )
            self._trains[names, fed] = bool((resolved.collectives or alone) and nodes & self._step_writers)
        return self._trains[names, fed]


@dataclass(eq=False)
class CallingHook(CheckpointHook):
    """Writes checkpoints while workers train asynchronously: worker 0 calls, and the others come after their runs."""

    is_patient: ClassVar[bool] = True  # whatever a run takes that another worker is in
    _ending: Any = None

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """Writes the state at the start, unless it has just been read."""
        # Collectives of one communicator must begin in one order on all workers, and who ends when is not known.
        self._ending = self.checkpoints.storage.comm.Dup()
        if self.checkpoints.loaded_step is None:
            self._save(session, self.checkpoints.storage.comm.bcast(self._step(session)), may_fail=False)
        else:
            self._saved(self.checkpoints.loaded_step)

    def after_run(self, run_context: RunContext, run_values: RunValues) -> None:
        """On worker 0, calls the others when it is time; elsewhere, comes when it was called."""
        self._look()
        comm, session = self.checkpoints.storage.comm, self.worker.raw
        if comm.Get_rank():
            self._come(session)
            return
        config, step = self.checkpoints.config, self._step(session)
        by_steps = config.save_ckpt_steps is not None and step >= self._saved_step + config.save_ckpt_steps
        seconds = time.monotonic() - self._saved_s
        by_seconds = config.save_ckpt_secs is not None and seconds >= config.save_ckpt_secs
        if step != self._saved_step and (by_steps or by_seconds):
            for rank in range(1, comm.Get_size()):
                comm.send(step, rank)
            self._save(session, step)

    def end(self, session: Session) -> None:
        """Writes the state at a good end, when all workers have come to theirs."""
        comm = self.checkpoints.storage.comm
        with self.worker.watch.run("the last checkpoint", "checkpoint, end", patient=True):
            arrived = self._ending.Ibarrier()
            while not arrived.Test():
                self._come(session)
                time.sleep(_CALL_POLL_S)
        self._save(session, comm.bcast(self._read_step(session)), may_fail=False)

    def _come(self, session: Session) -> None:
        """Takes part in a checkpoint that worker 0 has called for."""
        comm = self.checkpoints.storage.comm
        if comm.Get_rank() and comm.iprobe(source=0):
            self._save(session, comm.recv(source=0))

    def _read_step(self, session: Session) -> int:
        """The servers' step, where a worker's own copy is as old as its last run."""
        storage = self.checkpoints.storage
        held = next(h for h in storage.held if h.stored.op == self.checkpoints.step_op)
        return int(held.read(session, 0, 1)) if storage.comm.Get_rank() == 0 else 0


def _writers(view: GraphView, variable: str) -> frozenset[str]:
    """The ops that write a variable, or take it into a body where they may."""
    found, waiting, seen = set(), [variable], {variable}
    while waiting:
        node = waiting.pop()
        for tensor in {f"{node}:0", f"{node}:1", *view.outputs(node)}:
            for edge in view.consumers(tensor):
                op = view.op(edge.node)
                if op in _TAKES_ALONG or (edge.slot == 0 and op.startswith(_WRITES)):
                    found.add(edge.node)
                elif op in _PASSES_ON and edge.node not in seen:
                    seen.add(edge.node)
                    waiting.append(edge.node)
    return frozenset(found)
