"""Saves a job's state to the memory of its hosts: at the start, and at a fixed interval of training steps.

It counts the same runs as checkpoints do (checkpoint/step_runs.py). The workers write one set together, after the same
run. A start writes all rows as set 0; every later set has only the touched rows of variables that are updated by row.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import tensorflow as tf

from parallax.base.types import Coordinator, Graph, RunContext, RunValues, Session
from parallax.report.logger import log
from parallax.report.show import show
from parallax.report.text import bytes_text, list_first
from parallax.runtime.checkpoint.checkpoints import step_tensor
from parallax.runtime.checkpoint.format.stored_tensors import stored_variables
from parallax.runtime.checkpoint.positions import SavedPositions
from parallax.runtime.checkpoint.rows.access_to_rows import build_access
from parallax.runtime.checkpoint.rows.row_places import Places
from parallax.runtime.checkpoint.rows.touched_tables import Marks
from parallax.runtime.checkpoint.rows.variable_rows import StoredVariable
from parallax.runtime.checkpoint.step_runs import StepRuns
from parallax.runtime.memory_checkpoints.recovery import RecoveredState, next_generation
from parallax.runtime.memory_checkpoints.snapshot import Snapshot, snapshot
from parallax.runtime.memory_checkpoints.store import PeerStore
from parallax.runtime.supervisor.control import tell_saved
from parallax.runtime.worker.preemption import Preemption
from parallax.runtime.worker.session.run_context import WorkerContext

_TELL_S = 1.0  # interval of progress reports to the launcher


@dataclass
class PeerMemory:
    """The state of a job in the memory of hosts, one worker's part in it.

    Attributes:
        every: the number of steps from one set to the next.
        store: writes.
        snapshot: reads the variables.
        variables: the variables, to which a recovered state is written.
        recovered: the state that this start resumes from; None without one.
        positions: of random streams and input pipelines.
        unreplicated: the variables of which each row is on one host only.
        is_shared: whether there is another host.
        seconds: how long training has waited for sets.
        sets: how many were written since the start, without set 0.
        is_new: whether the next set is the first of a generation.
    """

    every: int
    store: PeerStore
    snapshot: Snapshot
    variables: tuple[StoredVariable, ...]
    recovered: RecoveredState | None
    positions: SavedPositions | None
    unreplicated: frozenset[str]
    is_shared: bool
    seconds: float = 0.0
    sets: int = 0
    is_new: bool = True

    def load(self, session: Session) -> bool:
        """Loads the recovered state, if there is one, and returns whether it did; every worker must call it."""
        state, self.recovered = self.recovered, None
        if state is None:
            return False
        name = "from the memory of hosts"
        lost = state.load(session, self.variables)
        notes = () if self.positions is None else self.positions.continue_from(session, state.positions(), name)
        if self.store.comm.Get_rank() == 0:
            show(f"Resumed from step {state.chosen.step}: {name}\n")
            if lost:
                log.warning(f"Rows that only a lost host stored restart from initial values: {list_first(lost)}.")
            for note in notes:
                log.info(f"Resumed: {note}")
            tell_saved(state.chosen.step, loaded=True)
        return True

    def begin(self, session: Session) -> int:
        """Writes set 0 of a new generation; every worker must call it. Returns its step."""
        generation = next_generation(self.store.folder, self.store.comm)
        self.store.begin(generation, self.snapshot.part_heads(generation), self.snapshot.bases(session))
        step = self._write(session, 0)
        self.store.settle()
        self.is_new = False
        if self.store.comm.Get_rank() == 0:
            where = "two hosts" if self.is_shared else "this host alone, so that it outlives processes and not the host"
            memory_text = bytes_text(self.store.memory_bytes())
            log.info(f"The state of each step is in the memory of {where}; it uses {memory_text} of this one.")
        return step

    def switch_placement(self, graph: Graph, places: Places) -> None:
        """Switches to another placement of rows; builds the ops for it in the default graph, a worker's.

        The next set is the first of a generation, and in all later sets variables are stored in full.
        """
        comm, is_first = self.store.comm, self.store.is_first
        self.variables = build_access(stored_variables(graph), places, comm)
        everything = (*self.variables, *(() if self.positions is None else self.positions.variables))
        self.snapshot = snapshot(everything, Marks(), comm, is_first, step_tensor(graph, places), self.unreplicated)
        self.is_new = True

    def write(self, session: Session) -> int:
        """Writes the next set; every worker must call it. Returns its step."""
        if self.is_new:
            return self.begin(session)
        began_s = time.monotonic()
        step = self._write(session, self.store.number + 1)
        self.sets, self.seconds = self.sets + 1, self.seconds + time.monotonic() - began_s
        return step

    def log_cost(self) -> None:
        """Logs the cost of the sets, on worker 0."""
        if self.store.comm.Get_rank() or not self.sets:
            return
        sent, memory_text = bytes_text(self.store.sent_bytes // self.sets), bytes_text(self.store.memory_bytes())
        log.info(
            f"The state in the memory of hosts: a worker sent {sent} a set to another host and waited "
            f"{1e3 * self.seconds / self.sets:.1f} ms; the host's memory has {memory_text} of it."
        )

    def _write(self, session: Session, number: int) -> int:
        if self.positions is not None:
            self.positions.put(session)
        records = self.snapshot.read(session, number)
        self.store.add(records)
        return records[self.store.comm.Get_rank()].step


@dataclass(eq=False)  # TensorFlow keeps hooks in dicts
class PeerMemoryHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Writes sets around the runs of a session.

    Attributes:
        memory: the state in memory.
        worker: the worker whose runs are inspected.
        runs: identifies the training runs.
        ends_early: whether this hook ends a job that must continue on other hosts; else the hook of checkpoints does.
    """

    memory: PeerMemory
    worker: WorkerContext
    runs: StepRuns
    ends_early: bool
    _written_step: int = 0
    _logged_s: float = 0.0
    _preemption: Preemption = field(init=False)

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """Writes the initial state."""
        if self.ends_early:
            self._preemption = Preemption(self.memory.store.comm)
            if self.memory.positions is not None:
                self.memory.positions.begin_again(session)
        with self.worker.watch.run("the state into the memory of hosts", "memory checkpoints, 0", patient=True):
            self._written_step = self.memory.begin(session)

    def after_run(self, run_context: RunContext, run_values: RunValues) -> None:
        """Writes a set when it is due."""
        if not self.runs.has_trained():
            return
        if self.worker.run is not None:
            self.worker.count(self.worker.run)  # it is in the set
        session = self.worker.raw
        step = self._written_step + 1 if self.memory.every == 1 else self._step(session)
        if step >= self._written_step + self.memory.every:
            self._write(session)
        if self.ends_early and self._preemption.is_now():
            if self._written_step != (step := self._step(session)):
                self._write(session)
            self.memory.store.settle()
            self._preemption.leave(step)

    def _write(self, session: Session) -> None:
        with self.worker.watch.run("the state into the memory of hosts", "memory checkpoints", patient=False):
            self._written_step = self.memory.write(session)
        if self.memory.store.comm.Get_rank() == 0 and time.monotonic() - self._logged_s >= _TELL_S:
            tell_saved(self._written_step)
            self._logged_s = time.monotonic()

    def end(self, session: Session) -> None:
        """Logs the cost."""
        self.memory.log_cost()

    def _step(self, session: Session) -> int:
        return int(session.run(self.memory.snapshot.step))
