"""When the workers write a checkpoint: at the start, every so many steps or seconds of training, and at a good end.

In synchronous training all workers must begin to write after the same run, and no run of one worker alone may come into
it. So only runs that train are looked at: those that take part in collectives, which all workers run together, and that
write the global step; not those of hooks or `raw_session()`. After such a run all workers have the same global step,
and by steps each knows by itself what the others do. By seconds worker 0's clock decides, and tells the others after
each such run. At a good end whose step is already saved nobody waits.

Asynchronous workers are at different steps. Worker 0 decides, calls the others, and waits until each has ended its run;
they train on when the checkpoint is written, so that weights and slots belong together.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import tensorflow as tf

from parallax.errors import ConfigError
from parallax.graph.view import GraphView, split_tensor
from parallax.logger import log
from parallax.report.show import show
from parallax.runtime.checkpoint.folder import FilesFailed, Retention
from parallax.runtime.checkpoint.held import Places, hold
from parallax.runtime.checkpoint.positions import KeptPositions
from parallax.runtime.checkpoint.storage import Moved, Storage
from parallax.runtime.checkpoint.stored import CHUNK_BYTES, stored_variables, variable_op
from parallax.runtime.worker.barrier import barrier
from parallax.runtime.worker.hooks import WorkerContext
from parallax.settings.parts import CheckPointConfig
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
        loaded_step: the step that the session was resumed at; None for a start from initial values.
        positions: where random streams and the input are; None where checkpoints do not hold that.
    """

    config: CheckPointConfig
    storage: Storage
    step: Any
    step_op: str
    loaded_step: int | None = None
    positions: KeptPositions | None = None

    def hold(self, graph: Graph, places: Places) -> None:
        """Goes by other places from now on; builds what that needs in the default graph, a worker's."""
        self.storage = replace(self.storage, held=hold(stored_variables(graph), places, self.storage.comm))
        self.step = _value(graph, places.here(self.step_op))

    def load(self, session: Session) -> None:
        """Loads the latest checkpoint, if there is one; every worker must call it."""
        moved = self.storage.load(session)
        if moved is not None:
            self.loaded_step = int(session.run(self.step))
            anew = () if self.positions is None else self.positions.take(session, moved.prefix)
            if self.storage.comm.Get_rank() == 0:
                notes = "".join(f"{note}\n" for note in moved.notes)
                show(f"{notes}Resumed from step {self.loaded_step}: {moved.prefix}\n")
                for note in anew:
                    log.info(f"Resumed: {note}")
            _LOG.info("Read: %s", moved)

    def save(self, session: Session, step: int) -> Moved:
        """Writes a checkpoint; every worker must call it, at the same step."""
        if self.positions is not None:
            self.positions.put(session)
        return self.storage.save(session, step)


def checkpoints(
    graph: Graph, places: Places, config: CheckPointConfig, comm: Comm, positions: KeptPositions | None = None
) -> Checkpoints:
    """Adds what checkpoints need to the default graph, a worker's.

    Args:
        graph: the user's graph.
        places: where the rows of its variables are.
        config: has a folder.
        comm: communicator of the workers.
        positions: what is held besides.
    """
    check_global_step(graph, config)
    held = hold(stored_variables(graph), places, comm)
    op = variable_op(v1.train.get_global_step(graph))
    retention = Retention(config.keep_last, config.keep_every_hours)
    beside = () if positions is None else positions.held
    storage = Storage(str(config.ckpt_dir), held, comm, CHUNK_BYTES, retention, beside)
    return Checkpoints(config, storage, _value(graph, places.here(op)), op, positions=positions)


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
    _saved_s: float = 0.0
    _trains: dict[tuple[tuple[str, ...], frozenset[str]], bool] = field(default_factory=dict)
    _names: Any = None  # of the plan that these are known for
    _step_writers: frozenset[str] = frozenset()

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """Writes the state at the start, unless it has just been read."""
        if self.checkpoints.positions is not None:
            self.checkpoints.positions.begin_again(session)
        if self.checkpoints.loaded_step is None:
            self._save(session, self._step(session), may_fail=False)
        else:
            self._saved(self.checkpoints.loaded_step)

    def after_run(self, run_context: RunContext, run_values: RunValues) -> None:
        """Writes a checkpoint when it is time."""
        config = self.checkpoints.config
        if (config.save_ckpt_steps is None and config.save_ckpt_secs is None) or not self._has_trained():
            return
        if self.worker.run is not None:
            self.worker.count(self.worker.run)  # it is in the checkpoint
        session = self.worker.raw
        step = self._step(session)
        if self._is_due(step):
            self._save(session, step)

    def end(self, session: Session) -> None:
        """Writes the state at a good end, when all workers have come to theirs."""
        step = self._step(session)
        if step == self._saved_step and not self._is_missing:
            return
        # One worker may evaluate long after the others have ended, so this waits without limit for those who still run.
        with self.worker.watch.run("the last checkpoint", "checkpoint, end", patient=True):
            barrier(self.checkpoints.storage.comm)
        self._save(session, step, may_fail=False)

    def _save(self, session: Session, step: int, may_fail: bool = True) -> None:
        """Writes a checkpoint; while a job trains, one that cannot be written is a warning, and training goes on."""
        storage = self.checkpoints.storage
        self._is_missing = False
        try:
            with self.worker.watch.run(f"checkpoint of step {step}", f"checkpoint, {step}", patient=self.is_patient):
                moved = self.checkpoints.save(session, step)
        except FilesFailed as error:
            if not may_fail:
                raise
            self._is_missing = True
            notes: tuple[str, ...] = (f"{error} Training goes on; the next checkpoint is tried at its time.",)
        else:
            notes = moved.notes
            _LOG.info("Written: %s", moved)
        for note in notes if storage.comm.Get_rank() == 0 else ():
            _LOG.warning("%s", note)
        self._saved(step)

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
