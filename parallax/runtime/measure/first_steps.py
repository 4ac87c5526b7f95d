"""Profiles a model from the first steps of a running job: their ids are fetched beside what the user fetches.

The ids are there anyway, as every lookup takes them, so training goes on as without. Worker 0 gets what all have seen
when the last of these steps is done: in synchronous training all come there together, else when the scripts have ended.

The time computed is that of the ops of a trace which are no exchange, where several ran at once counted once; where
workers share cores it holds their waiting for one, which a process alone has not.
"""

from __future__ import annotations

import logging
import statistics
import sys
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from parallax.analysis.ids import TableIds, asked, fetchable, table_profiles, tables_of, unmeasured
from parallax.analysis.measure import Asked
from parallax.errors import ConfigError
from parallax.graph_view import split_tensor
from parallax.plan import Plan
from parallax.profile_files import write_model_profile
from parallax.profiles import MODEL_PROFILE_VERSION, ModelProfile
from parallax.report import profile_table
from parallax.runtime.checkpoint.held import meet
from parallax.runtime.hooks import TrainingRuns, Worker
from parallax.runtime.measure.memory import peak_bytes, reset_peak, variable_bytes
from parallax.runtime.measure.wish import MeasureWish
from parallax.runtime.members import Members
from parallax.runtime.planning import Analysed
from parallax.runtime.trace.ops import COMPUTE, read_step
from parallax.runtime.trace.rows import length_us

v1 = tf.compat.v1
_LOG = logging.getLogger("parallax.measure")
FIRST_STEPS = "first steps"
_TRACED = 5  # the last of the measured steps: after what the first do once, and odd, for a median


class FirstSteps(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Measures one worker's first steps; all workers must have one, and call `finish` at their ends.

    Args:
        wish: how many, and where to.
        members: the job.
        worker: this one's graph.
        training: tells which runs are steps.
        analysed: the user's graph, with what hooks add to it.
        plan: of the graph without that.
    """

    def __init__(
        self,
        wish: MeasureWish,
        members: Members,
        worker: Worker,
        training: TrainingRuns,
        analysed: Analysed,
        plan: Plan,
    ) -> None:
        self._wish = wish
        self._members = members
        self._worker = worker
        self._training = training
        self._synchronous = plan.synchronous
        self._graph = plan.fingerprint
        tables = tables_of(analysed.captured, analysed.spec)
        self._tables, self._reasons = fetchable(analysed.captured, tables)
        self._held = variable_bytes(worker.names.run_view.nodes.values())
        self._needed: dict[tuple[tuple[str, ...], frozenset[str]], list[list[int]]] = {}
        self._comm: Any = None
        self._asked: list[list[Asked]] = []
        self._fetched: list[list[int]] | None = None  # of the run in progress: by table, which lookups
        self._traced: list[Any] = []
        self._tells_peak = False
        self._peak: int | None = None
        self._finished = False
        gpu = bool(tf.config.list_physical_devices("GPU"))
        self._level = v1.RunOptions.FULL_TRACE if gpu else v1.RunOptions.SOFTWARE_TRACE

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Takes a communicator for itself; every worker comes here."""
        self._comm = self._members.workers.Dup()

    def before_run(self, run_context: Any) -> Any:
        """Asks for the ids of those lookups that the step runs, and of the last steps for a trace."""
        self._fetched = None
        step = len(self._asked)
        if self._finished or step >= self._wish.steps or not self._training.is_one():
            return None
        if step == 0:
            self._tells_peak = reset_peak()
        self._fetched = self._lookups_of_run()
        tensors = [
            table.tensors[place].tensor
            for table, places in zip(self._tables, self._fetched, strict=True)
            for place in places
        ]
        options = v1.RunOptions(trace_level=self._level) if step >= self._wish.steps - _TRACED and step else None
        return v1.train.SessionRunArgs(tensors, options=options)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Keeps what was fetched; after the last of the steps, writes the profile."""
        if self._fetched is None:
            return
        values = iter(run_values.results)
        rank, step = self._members.rank, len(self._asked)
        found = []
        for table, places in zip(self._tables, self._fetched, strict=True):
            only = TableIds(table.name, table.first_rows, tuple(table.tensors[place] for place in places))
            found.append(asked(only, [next(values) for _ in places], rank, step))
        self._asked.append(found)
        if step and step >= self._wish.steps - _TRACED:
            self._traced.append(run_values.run_metadata.step_stats)
        if len(self._asked) == self._wish.steps:
            self._peak = self._own_peak()
            if self._synchronous:
                with self._worker.watch.run("the profile", "profile"):
                    self.finish()

    def finish(self) -> None:
        """Meets the other workers and has worker 0 write what all have seen; a second call changes nothing."""
        if self._finished or self._comm is None:
            return
        self._finished = True
        own = (self._asked, self._compute_s(), self._peak if self._peak is not None else self._own_peak())
        meet(self._comm)
        everyone = self._comm.gather(own)
        self._asked, self._traced = [], []
        if self._members.rank == 0:
            self._write(everyone)

    def _lookups_of_run(self) -> list[list[int]]:
        """For each table the numbers of those of its lookups that the run in progress needs."""
        run = self._worker.run
        if run is None:
            return [[] for _ in self._tables]
        key = (run.names, frozenset(run.fed))
        if key not in self._needed:
            nodes = {split_tensor(name)[0] if ":" in name else name for name in run.names}
            needed = self._worker.names.run_view.ancestors(nodes, key[1])
            self._needed[key] = [[i for i, one in enumerate(t.tensors) if one.lookup in needed] for t in self._tables]
        return self._needed[key]

    def _compute_s(self) -> list[float]:
        """For each traced step, how long this worker computed; what ran beside each other counted once."""
        found = []
        for number, stats in enumerate(self._traced):
            ops = [op for op in read_step(number, stats).ops if op.kind == COMPUTE and op.server is None]
            found.append(length_us((op.start_us, op.end_us) for op in ops) / 1e6)
        return found

    def _own_peak(self) -> int | None:
        return max(0, peak_bytes() - self._held) if self._tells_peak else None

    def _write(self, everyone: Sequence[tuple[list[list[Asked]], list[float], int | None]]) -> None:
        steps = min(len(seen) for seen, _, _ in everyone)
        if not steps:
            _LOG.warning("There is no profile of the first steps: not every worker ran one that trains.")
            return
        by_step = [[seen[step] for seen, _, _ in everyone] for step in range(steps)]
        times_s = [one for _, of_worker, _ in everyone for one in of_worker]
        peaks = [peak for _, _, peak in everyone]
        profile = ModelProfile(
            version=MODEL_PROFILE_VERSION,
            graph=self._graph,
            cluster=self._wish.cluster,
            steps=steps,
            source=FIRST_STEPS,
            tables=table_profiles(self._tables, by_step),
            compute_s=statistics.median(times_s) if times_s else None,
            memory_bytes=None if None in peaks else max(peak for peak in peaks if peak is not None),
            computing=self._members.workers.size,
        )
        try:
            write_model_profile(profile, self._wish.path)
        except ConfigError as error:  # training is worth more than its profile
            _LOG.warning("The profile is lost: %s", error)
            return
        sys.stdout.write(profile_table(profile, tuple(unmeasured(self._reasons))) + f"Written to {self._wish.path}\n")
        sys.stdout.flush()
