"""Context of a worker's runs: the user's graph, this worker's graph, and a session that reads names of the first.

The fetches and feeds of a hook, through the session it receives, are read in names of the user's graph. Their results
are those of a plain TensorFlow session, not lists per replica.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial

import tensorflow as tf
from tensorflow.python.client.session import SessionInterface  # the interface that Saver expects of a session

from parallax.analysis.graph_to_plan import AnalysedGraph
from parallax.base.errors import SessionError
from parallax.base.types import FeedDict, Fetches, Graph, Nest, RunContext, RunMetadata, RunOptions, Session, Value
from parallax.plans.plan import Plan
from parallax.runtime.worker.heartbeat import Heartbeat
from parallax.runtime.worker.reports.nan_report import NanReport
from parallax.runtime.worker.reports.run_log import RunLog, RunTimes
from parallax.runtime.worker.session.accumulation import Accumulation, Gather
from parallax.runtime.worker.session.batch_comparison import BatchComparison
from parallax.runtime.worker.session.fetches import (
    Fetchable,
    Leaf,
    Request,
    check_computed,
    read_request,
    restore_structure,
)
from parallax.runtime.worker.session.names import Names, fetch_text
from parallax.runtime.worker.session.one_graph import place_of
from parallax.runtime.worker.session.positions import InputPositions
from parallax.runtime.worker.session.resolved_run import ResolvedRun
from parallax.runtime.worker.session.runs import Runs
from parallax.runtime.worker.session.stage_values import StageValues
from parallax.transform.building.editor import Counter
from parallax.transform.building.wire import Rounding
from parallax.transform.pipeline import WorkerGraph

v1 = tf.compat.v1
NOT_CHIEFS = (
    "A hook in Config.chief_only_hooks can fetch only what worker 0 computes on its own, but all workers must take "
    "part in {fetch}. Move the hook to Config.hooks, which all workers run; for checkpoints use CheckPointConfig."
)


@dataclass
class Run:
    """The run in progress.

    Attributes:
        context: the run context that the user's hooks receive.
        names: the user's fetches.
        fed: the feeds of the user and the hooks.
        gather: for a run without an update, if updates use several batches.
        hook_names: the hooks' fetches.
        is_counted: whether positions include it already.
    """

    context: RunContext
    names: tuple[str, ...]
    fed: set[str]
    gather: Gather | None = None
    hook_names: list[str] = field(default_factory=list)
    is_counted: bool = False


@dataclass
class WorkerContext:
    """This worker's graph in the user's names, shared by the session and the hooks.

    Attributes:
        graph: the user's graph.
        names: of this worker's graph.
        watch: reports runs to the launcher.
        analysed: the user's graph, as it is trained.
        raw: TensorFlow's session; None before it is made and after it is closed.
        run: the run in progress.
        plan: the current plan.
        counters: the counters of its exchanges.
        roundings: the measurements of rounding on the wire.
        changes: the earlier plans, each with the number of steps after which it was replaced.
        accumulation: the batches of the next update.
        runs: records runs, for the guard; None without one.
        log: follows the user's runs.
        positions: counts consumed data; None if disabled.
        batches: compares the batches of all workers; None if disabled.
        nan_report: reports where a scalar is first NaN; None if disabled.
        stages: gathers values of other stages of the model; None if this worker has all of it.
    """

    graph: Graph
    names: Names
    watch: Heartbeat
    analysed: AnalysedGraph
    raw: Session = None
    run: Run | None = None
    plan: Plan | None = None
    counters: tuple[Counter, ...] = ()
    roundings: tuple[Rounding, ...] = ()
    changes: list[tuple[int, Plan]] = field(default_factory=list)
    accumulation: Accumulation = field(default_factory=Accumulation)
    runs: Runs | None = None
    log: RunLog | None = None
    positions: InputPositions | None = None
    batches: BatchComparison | None = None
    nan_report: NanReport | None = None
    stages: StageValues | None = None

    def __post_init__(self) -> None:
        self._known = Fetchable(self.graph, self._is_known)

    def position_feeds(
        self, names: tuple[str, ...], fed: Mapping[str, Value], gather: Gather | None
    ) -> dict[str, Value]:
        """Feeds of a run by which iterators resume at their positions."""
        return {} if self.positions is None else self.positions.feeds(self.names, names, fed, gather)

    def count(self, run: Run) -> None:
        """Counts the data of an executed run; once, whichever caller is first."""
        if self.positions is not None and not run.is_counted:
            self.positions.record_run(self.names, (*run.names, *run.hook_names), run.fed, run.gather)
        run.is_counted = True

    @contextmanager
    def time_run(self) -> Iterator[RunTimes]:
        """Context in which the log follows a run of the user's; `record_run` records its success."""
        began_s = time.monotonic()
        if self.log is None:
            yield RunTimes(began_s, 0.0)
            return
        run = self.log.begin(began_s)
        try:
            yield run
        finally:
            self.log.end(time.monotonic())

    def record_run(self, names: tuple[str, ...], run: RunTimes) -> None:
        """Logs a successful run of the user's: its fetches, and its start."""
        if self.log is not None:
            self.log.record_run(names, run, time.monotonic(), self.accumulation.pending, self.plan)

    def place_of(self, op: str) -> str:
        """The script's line that made an op of its graph; empty if unknown."""
        try:
            return place_of(self.graph.get_operation_by_name(op))
        except KeyError:  # the analysis made it
            return ""

    def with_sources(self, request: Request) -> Request:
        """Adds the fetches for the comparison of batches in the first steps to a run's request."""
        return request if self.batches is None else self.batches.with_sources(request)

    def look_at(self, request: Request, fetched: Sequence[Value]) -> None:
        """Inspects the feeds and results of a run of the script's.

        Args:
            request: the script's own.
            fetched: the values of its names, and of those that `with_sources` has added.
        """
        if self.batches is not None:
            self.batches.after_run(request.names, request.feeds, fetched)
        if self.nan_report is not None:
            self.nan_report.after_run(request.names, fetched)

    @property
    def step(self) -> int | None:
        """The number of the step in progress, or of the next one, from 1; None if steps are not counted."""
        return None if self.log is None else self.log.step

    def follow(self, plan: Plan, worker_graph: WorkerGraph) -> None:
        """Makes a plan the current one."""
        self.plan, self.counters, self.roundings = plan, worker_graph.counters, worker_graph.roundings
        self.accumulation.steps = worker_graph.accumulate_steps

    def read(self, fetches: Fetches, feeds: FeedDict | None, per_replica: bool) -> Request:
        """Checks and names fetches and feeds."""
        return read_request(self._known, fetches, feeds, per_replica)

    def _is_known(self, name: str) -> bool:
        check_computed(name, self.analysed.captured.lazy)
        return self.names.has(name)

    def share_failures(self, resolved: ResolvedRun) -> AbstractContextManager[None]:
        """Context of a run; other stages of the model fail with it."""
        return nullcontext() if self.stages is None else self.stages.share_failures(resolved)

    def complete_values(self, resolved: ResolvedRun, fetched: Sequence[Value]) -> Sequence[Value]:
        """The results of a run for each fetched name; values of another stage are gathered."""
        local = resolved.values(fetched)
        return local if self.stages is None else self.stages.complete_values(resolved, local)

    def share_step_failures(self) -> AbstractContextManager[None]:
        """A context for the runs of a front end's step; other stages of the model fail with them."""
        return nullcontext() if self.stages is None else self.stages.share_step_failures()

    def gather_values(self, runs: Sequence[tuple[ResolvedRun, Sequence[Value]]]) -> list[Sequence[Value]]:
        """The results of a step's runs: of all stages on the first stage, local ones on others."""
        if self.stages is None:
            return [values for _, values in runs]
        with self.watch.run("the values of a step", "values of a step"):
            return self.stages.gather(runs)

    def values(self, request: Request, fetched: Sequence[Value], per_replica: bool) -> Nest:
        """The values of a request, in its structure."""
        return restore_structure(request, fetched, self._is_saved_path if per_replica else None)

    def _is_saved_path(self, fetch: Leaf) -> bool:
        # A tf.train.Saver fetches by name, and uses the result as the path.
        return isinstance(fetch.like, str) and self.names.is_saved_path(fetch.names[0])


class PlainSession(SessionInterface):  # type: ignore[misc]
    """TensorFlow's session of this worker with the user's names: plain values instead of lists, no hooks.

    Args:
        worker: the worker of the session.
        is_chiefs: whether other workers do not make its runs, so that a run must do without them.
    """

    def __init__(self, worker: WorkerContext, is_chiefs: bool = False) -> None:
        self._worker, self._is_chiefs = worker, is_chiefs

    @property
    def graph(self) -> Graph:
        """The user's graph."""
        return self._worker.graph

    @property
    def sess_str(self) -> str:
        """The TensorFlow target; workers run in their own process."""
        return ""

    def run(
        self,
        fetches: Fetches,
        feed_dict: FeedDict | None = None,
        options: RunOptions | None = None,
        run_metadata: RunMetadata | None = None,
    ) -> Nest:
        """Runs fetches as `tf.compat.v1.Session.run`; raises SessionError for names that the user's graph lacks."""
        worker = self._worker
        request = worker.read(fetches, feed_dict, per_replica=False)
        sources = worker.names.accumulated_by(request.names, request.feeds)
        gather = worker.accumulation.next_run(sources)
        resolved = worker.names.resolve(request.names, request.feeds, gather)
        if worker.raw is None:
            raise SessionError("The session is closed and cannot run anything.")
        if self._is_chiefs and resolved.collectives:
            raise SessionError(NOT_CHIEFS.format(fetch=fetch_text(request.names, ())))
        with worker.time_run() as times, worker.watch.run(), worker.share_failures(resolved):
            for_all = partial(worker.names.for_all, request.names, request.feeds)
            worker.watch.begin(fetch_text(request.names, ()), resolved.collectives, for_all=for_all)
            feeds = {**resolved.feeds(request.feeds), **resolved.empty}
            feeds.update(worker.position_feeds(request.names, request.feeds, gather))
            fetched = worker.raw.run(list(resolved.tensors), feeds, options, run_metadata)
            worker.accumulation.has_run(sources)
            if worker.runs is not None:
                worker.runs.add(worker.names, request.names, (), request.feeds, gather)
            worker.count(Run(None, request.names, set(request.feeds), gather))
            worker.record_run(request.names, times)
            return worker.values(request, worker.complete_values(resolved, fetched), per_replica=False)

    def partial_run_setup(self, fetches: Fetches, feeds: object = None) -> None:
        """Not supported: collectives need complete runs."""
        raise SessionError("partial_run is not supported, since all workers take part in every run. Use run instead.")

    def partial_run(self, handle: object, fetches: Fetches, feed_dict: object = None) -> None:
        """Not supported: collectives need complete runs."""
        self.partial_run_setup(fetches)


class TrainingRuns:
    """Identifies and counts training runs; users of the count must query it in every run.

    Workers compare and save by this count, each when its own count reaches a value. So only runs that all workers must
    make equally often may count: if a graph has collectives, a run without any is no step. A worker that resets its
    part of a metric, or evaluates by itself, makes no step.

    Args:
        worker: of the runs.
        updates: the training ops, by name (training_updates).
    """

    def __init__(self, worker: WorkerContext, updates: Set[str]) -> None:
        self._worker = worker
        self._updates = updates
        self._names: Names | None = None
        self._trains: dict[tuple[str, ...], bool] = {}
        self._count = 0
        self._run: Run | None = None
        self._step: int | None = None

    @property
    def step(self) -> int | None:
        """The number of the step in progress, from 0; None in a run that does not train."""
        run = self._worker.run
        if run is not self._run:
            trains = run is not None and self.trains(run.names)
            self._run, self._step = run, self._count if trains else None
            self._count += trains
        return self._step

    def trains(self, fetched: tuple[str, ...]) -> bool:
        """Whether a run is a training step that fetches these names of the user's graph."""
        names = self._worker.names
        if names is not self._names:  # the plan has changed
            self._names, self._trains = names, {}
        if fetched not in self._trains:
            needed = names.run_view.ancestors({names.here(name.split(":")[0]) for name in fetched})
            self._trains[fetched] = any(names.here(update) in needed for update in self._updates) and (
                not names.has_collectives or names.has_collective_among(needed)
            )
        return self._trains[fetched]


class DefaultSession(PlainSession):
    """The default session inside `with sess:`, for `tensor.eval()` and `op.run()`: feeds and results are plain values.

    Args:
        worker: the worker of the session.
        run: of the session, with hooks; its last argument is whether feeds and results are lists per replica.
    """

    def __init__(self, worker: WorkerContext, run: Callable[..., Nest]) -> None:
        super().__init__(worker)
        self._run_all = run

    def run(
        self,
        fetches: Fetches,
        feed_dict: FeedDict | None = None,
        options: RunOptions | None = None,
        run_metadata: RunMetadata | None = None,
    ) -> Nest:
        """Runs fetches as `Session.run`, without lists per replica."""
        return self._run_all(fetches, feed_dict, options, run_metadata, per_replica=False)
