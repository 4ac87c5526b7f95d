"""Profiles a model from the first steps of a running job: their ids are fetched along with the user's fetches.

Every lookup has the ids as input, so fetching them does not change training. Worker 0 receives the ids of all workers
when the last of these steps is done: in synchronous training all workers get there together, otherwise when the scripts
have ended.

The compute time is that of the ops of a trace other than exchanges; times at which several ops ran at once count once.
Where workers share cores it includes their waiting for a core, which a process alone does not have.
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf

from parallax.analysis.graph_to_plan import AnalysedGraph
from parallax.analysis.measuring.count_ids import LookedUpIds
from parallax.analysis.measuring.ids import (
    TableIds,
    collect_ids,
    explain_unmeasured,
    find_fetchable_tables,
    list_tables,
    table_profiles,
)
from parallax.analysis.timing.intervals import length
from parallax.base.errors import ConfigError
from parallax.base.types import Comm, Coordinator, RunArgs, RunContext, RunValues, Session, StepStats
from parallax.cluster.profile_files import save_profile
from parallax.cluster.profiles import MODEL_PROFILE_VERSION, ModelProfile
from parallax.graph.view import node_of
from parallax.report.profile_table import profile_table
from parallax.report.show import show
from parallax.runtime.measure.memory import peak_bytes, reset_peak, variable_bytes
from parallax.runtime.measure.options import MeasureOptions
from parallax.runtime.trace.ops import COMPUTE, read_step
from parallax.runtime.worker.barrier import barrier
from parallax.runtime.worker.ranks import ProcessGroup
from parallax.runtime.worker.session.run_context import TrainingRuns, WorkerContext

v1 = tf.compat.v1
_LOG = logging.getLogger("parallax.measure")
FIRST_STEPS = "first steps"
_TRACED = 5  # the last of the measured steps: after the one-time work of the first ones, and odd, for a median


class FirstSteps(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Measures one worker's first steps; all workers must have one, and call `finish` at their ends.

    Attributes:
        finished: whether the measurement is complete, and runs need no more inspection.
        profile: the result, on worker 0 when finished; None elsewhere, and if not all workers trained.

    Args:
        options: the number of steps, and the file.
        members: the job.
        worker: this one's graph.
        training: identifies the runs that are steps.
        analysed: the user's graph, with the additions of hooks.

    Raises:
        ValueError: there is no current plan yet.
    """

    def __init__(
        self,
        options: MeasureOptions,
        members: ProcessGroup,
        worker: WorkerContext,
        training: TrainingRuns,
        analysed: AnalysedGraph,
    ) -> None:
        plan = worker.plan
        if plan is None:
            raise ValueError("Steps are measured under a plan.")
        self._options = options
        self._members = members
        self._worker = worker
        self._training = training
        self._synchronous = plan.synchronous
        self._graph = analysed.spec.model_key
        tables = list_tables(analysed.captured, analysed.spec)
        self._tables, self._reasons = find_fetchable_tables(analysed.captured, tables)
        self._resident_bytes = variable_bytes(worker.names.run_view.nodes.values())
        self._needed: dict[tuple[tuple[str, ...], frozenset[str]], list[list[int]]] = {}
        self._comm: Comm = None
        self._requested: list[list[LookedUpIds]] = []
        self._step = 0
        self._fetched: list[list[int]] | None = None  # of the step in progress: by table, the indices of its lookups
        self._traced: list[StepStats] = []
        self._has_reset_peak = False
        self._peak: int | None = None
        self.finished = False
        self.profile: ModelProfile | None = None
        gpu = bool(tf.config.list_physical_devices("GPU"))
        self._level = v1.RunOptions.FULL_TRACE if gpu else v1.RunOptions.SOFTWARE_TRACE

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """Creates its own communicator; every worker calls it."""
        self._comm = self._members.workers.Dup()

    def before_run(self, run_context: RunContext) -> RunArgs:
        """Adds fetches of the ids of those lookups that the step runs, and of a trace in the last steps."""
        self._fetched = None
        step = None if self.finished else self._training.step
        if step is None or step >= self._options.steps:
            return None
        if step == 0:
            self._has_reset_peak = reset_peak()
        self._step, self._fetched = step, self._lookups_of_run()
        tensors = [
            table.tensors[place].tensor
            for table, places in zip(self._tables, self._fetched, strict=True)
            for place in places
        ]
        options = v1.RunOptions(trace_level=self._level) if step >= self._options.steps - _TRACED and step else None
        return v1.train.SessionRunArgs(tensors, options=options)

    def after_run(self, run_context: RunContext, run_values: RunValues) -> None:
        """Keeps the fetched values; after the last of the steps, writes the profile."""
        if self._fetched is None:
            return
        values = iter(run_values.results)
        rank, step = self._members.rank, self._step
        found = []
        for table, places in zip(self._tables, self._fetched, strict=True):
            only = TableIds(table.name, table.first_rows, tuple(table.tensors[place] for place in places))
            found.append(collect_ids(only, [next(values) for _ in places], rank, step))
        self._requested.append(found)
        if step and step >= self._options.steps - _TRACED:
            self._traced.append(run_values.run_metadata.step_stats)
        if step == self._options.steps - 1:
            self._peak = self._read_local_peak()
            if self._synchronous:
                with self._worker.watch.run("the profile", "profile"):
                    self.finish()

    def finish(self) -> None:
        """Gathers the workers' results, which worker 0 writes; a second call has no effect."""
        if self.finished or self._comm is None:
            return
        self.finished = True
        local = (self._requested, self._compute_s(), self._peak if self._peak is not None else self._read_local_peak())
        barrier(self._comm)
        by_worker = self._comm.gather(local)
        self._requested, self._traced = [], []
        if self._members.rank == 0:
            self.profile = self._merge_profiles(by_worker)
            if self.profile is not None and self._options.path is not None:
                self._write(self.profile, self._options.path)

    def _lookups_of_run(self) -> list[list[int]]:
        """For each table the indices of those of its lookups that the run in progress needs."""
        run = self._worker.run
        if run is None:
            return [[] for _ in self._tables]
        key = (run.names, frozenset(run.fed))
        if key not in self._needed:
            nodes = {node_of(name) if ":" in name else name for name in run.names}
            needed = self._worker.names.run_view.ancestors(nodes, key[1])  # there is no other plan before the end
            self._needed[key] = [[i for i, one in enumerate(t.tensors) if one.lookup in needed] for t in self._tables]
        return self._needed[key]

    def _compute_s(self) -> list[float]:
        """This worker's compute time in each traced step; concurrent ops count once."""
        seconds = []
        for number, stats in enumerate(self._traced):
            ops = [op for op in read_step(number, stats).ops if op.kind == COMPUTE and op.server is None]
            seconds.append(length((op.start_us, op.end_us) for op in ops) / 1e6)
        return seconds

    def _read_local_peak(self) -> int | None:
        return max(0, peak_bytes() - self._resident_bytes) if self._has_reset_peak else None

    def _merge_profiles(
        self, by_worker: Sequence[tuple[list[list[LookedUpIds]], list[float], int | None]]
    ) -> ModelProfile | None:
        steps = min(len(seen) for seen, _, _ in by_worker)
        if not steps:
            _LOG.warning("There is no profile of the first steps: not every worker ran one that trains.")
            return None
        by_step = [[seen[step] for seen, _, _ in by_worker] for step in range(steps)]
        times_s = [one for _, of_worker, _ in by_worker for one in of_worker]
        peaks = [peak for _, _, peak in by_worker]
        return ModelProfile(
            version=MODEL_PROFILE_VERSION,
            graph=self._graph,
            cluster=self._options.cluster,
            steps=steps,
            source=FIRST_STEPS,
            tables=table_profiles(self._tables, by_step),
            compute_s=statistics.median(times_s) if times_s else None,
            memory_bytes=None if None in peaks else max(peak for peak in peaks if peak is not None),
            computing=self._members.workers.size,
        )

    def _write(self, profile: ModelProfile, path: Path) -> None:
        try:
            save_profile(profile, path)
        except ConfigError as error:  # a failed profile does not end training
            _LOG.warning("The profile is lost: %s", error)
            return
        show(profile_table(profile, tuple(explain_unmeasured(self._reasons))) + f"Written to {path}\n")
