"""The session of a worker's training loop: accepts the user's names, and returns the transformed graph's values.

Every `run` is parsed in names of the user's graph (fetches.py) and executed on this worker's graph (names.py). While a
run with collectives lasts, a watch informs the launcher what it waits for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.stack import default_session  # the stack that tf.Session enters

from parallax.base.errors import SessionError
from parallax.base.types import Comm, FeedDict, Fetches, MonitoredSession, Nest, RunMetadata, RunOptions, Value
from parallax.plans.plan import Plan
from parallax.report.logger import log
from parallax.report.show import show
from parallax.runtime.worker.reports.id_errors import id_error
from parallax.runtime.worker.reports.moved_bytes import ExchangeReport, exchange_report, measured_step, rounding_report
from parallax.runtime.worker.session.accumulation import MicroBatchRun
from parallax.runtime.worker.session.direct import DirectRuns
from parallax.runtime.worker.session.fetches import Request
from parallax.runtime.worker.session.names import fetch_text
from parallax.runtime.worker.session.resolved_run import ResolvedRun
from parallax.runtime.worker.session.run_context import DefaultSession, PlainSession, Run, WorkerContext
from parallax.runtime.worker.session.session_parts import (
    BetweenStepsHook,
    MeetingSchedule,
    PlanChange,
    RunGuard,
    SavedSteps,
    ValueAccess,
    Verification,
)

_GOOD_ENDS = (tf.errors.OutOfRangeError, StopIteration)
"""Errors that only mean the end of the data."""


class Session(PlainSession):
    """Runs the user's fetches on all workers' graphs.

    Every fetch returns a list with one entry per replica, and every feed is such a list. Fetching a variable returns
    its full value in the user's row order; all workers must then run it. It is a context manager, or ended by `close`.

    Attributes:
        values: reads and writes variables between runs, for front ends.
        resumed_step: the global step of the checkpoint that it started from; None if it started from initial values.
        checkpoints: those it has written; None if it writes none.
    """

    resumed_step: int | None = None
    checkpoints: SavedSteps | None = None

    def __init__(
        self,
        worker: WorkerContext,
        monitored: MonitoredSession,
        size: int,
        workers: Comm,
        direct: DirectRuns | None = None,
        afterwards: Sequence[BetweenStepsHook] = (),
        guard: RunGuard | None = None,
        values: ValueAccess | None = None,
        plan_change: PlanChange | None = None,
        meetings: MeetingSchedule | None = None,
    ) -> None:
        super().__init__(worker)
        self._monitored = monitored
        self._direct = direct
        self._afterwards = list(afterwards)  # one after the other
        self._guard = guard
        self.values = values
        self._plan_change = plan_change if meetings is None else None
        self._meetings = meetings
        self._size = size
        self._workers = workers
        self._defaults: list[ExitStack] = []
        self._verification: Verification | None = None
        for runner in self.graph.get_collection(tf.compat.v1.GraphKeys.QUEUE_RUNNERS):
            # They run in the monitored session already: tf.train.start_queue_runners starts no second set.
            runner.create_threads(self, start=False)

    def verify(self, make: Callable[[WorkerContext], Verification]) -> None:
        """Starts inspecting the first runs; `make` is called with this worker's graph."""
        self._verification = make(self._worker)

    def run(
        self,
        fetches: Fetches,
        feed_dict: FeedDict | None = None,
        options: RunOptions | None = None,
        run_metadata: RunMetadata | None = None,
    ) -> Nest:
        """Runs fetches of the user's graph.

        Args:
            fetches: a tensor, operation, variable, name, or a nest of them.
            feed_dict: tensor or name -> list with one entry per replica.
            options: RunOptions for TensorFlow.
            run_metadata: RunMetadata that TensorFlow fills.

        Returns:
            The nest with a list per fetch, one entry per replica; None for operations and, in a run without the update
            of several batches, for values that come with the update only.

        Raises:
            SessionError: when a fetch or feed is not in the user's graph, or is unavailable, or an id is no row of its
                table.
            GuardError: on all workers, when replicated state differs.
        """
        return self._run(fetches, feed_dict, options, run_metadata)

    def run_parts(
        self, fetches: Fetches, fed: Sequence[FeedDict], micro_batches: Sequence[MicroBatchRun] | None
    ) -> list[Nest]:
        """Runs a front end's step: as `run`, once for each part of its batch.

        With stages, the first stage returns all values, and other stages None for those of others. Values are gathered
        after all parts have run, so that the parts are pipelined through the stages.

        Args:
            fetches: as for `run`.
            fed: the feeds of each part.
            micro_batches: the micro-batch of each part, of which the last updates; None where steps are not split.
        """
        worker, pending = self._worker, list[tuple[Request, ResolvedRun, Sequence[Value]]]()
        with worker.share_step_failures():
            for number, feeds in enumerate(fed):
                part = None if micro_batches is None else micro_batches[number]
                self._run(fetches, feeds, micro_batch=part, later=pending)
        values_by_run = worker.gather_values([(resolved, local) for _, resolved, local in pending])
        for (request, *_), values in zip(pending, values_by_run, strict=True):
            worker.look_at(request, values)
        return [
            worker.values(request, values, True) for (request, *_), values in zip(pending, values_by_run, strict=True)
        ]

    def _run(
        self,
        fetches: Fetches,
        feed_dict: FeedDict | None,
        options: RunOptions | None = None,
        run_metadata: RunMetadata | None = None,
        per_replica: bool = True,
        micro_batch: MicroBatchRun | None = None,
        later: list[tuple[Request, ResolvedRun, Sequence[Value]]] | None = None,
    ) -> Nest:
        """Like `run`; with `later`, appends the local results to it, and gathers none of other stages."""
        worker = self._worker
        self._check_open()
        request = worker.read(fetches, feed_dict, per_replica)
        if self._verification is not None:
            self._verification.before_run(request)
        sources = worker.names.accumulated_by(request.names, request.feeds)
        gather = worker.accumulation.next_run(sources, micro_batch)
        resolved = worker.names.resolve(worker.with_sources(request).names, request.feeds, gather)
        run = Run(None, request.names, set(request.feeds), gather)
        position_feeds = worker.position_feeds(request.names, request.feeds, gather)
        feeds = {
            **resolved.feeds(request.feeds),
            **position_feeds,
            **worker.names.micro_batch_feeds(sources, micro_batch),
        }
        shared = worker.share_failures(resolved) if later is None else nullcontext()
        with worker.time_run() as times, worker.watch.run(), shared:
            try:
                result = None
                hook_request: tuple[tuple[str, ...], Any] = ((), request.feeds)  # fetches for hooks, and all feeds
                overlaps = bool(resolved.collectives) and options is None and run_metadata is None
                if self._direct is not None and options is None and run_metadata is None:
                    fetch = fetch_text(request.names, ())
                    for_all = partial(worker.names.for_all, request.names, request.feeds)
                    worker.watch.begin(fetch, resolved.collectives, for_all=for_all)
                    result = self._direct.run(resolved.tensors, {**feeds, **resolved.empty}, overlaps)
                if result is None:  # the last hook sets what the run waits for
                    arguments = tf.compat.v1.train.SessionRunArgs(fetches, feed_dict)
                    run.context = tf.compat.v1.train.SessionRunContext(arguments, PlainSession(worker))
                    worker.run = run  # hooks add their fetches
                    with nullcontext() if self._direct is None else self._direct.below_hooks(overlaps):
                        result = self._monitored.run(list(resolved.tensors), feeds, options, run_metadata)
                    hook_request = tuple(run.hook_names), run.fed
            except tf.errors.InvalidArgumentError as error:
                named = id_error(error, worker.names.run_view, self._workers.Get_rank(), worker.step)
                if named is None:
                    raise
                raise named from None  # TensorFlow's own message says less, in forty lines
            worker.watch.count()
            worker.accumulation.has_run(sources)
            worker.count(run)
            worker.record_run((*request.names, *run.hook_names), times)
            values = None
            if later is not None:
                later.append((request, resolved, resolved.values(result)))
            else:
                completed = worker.complete_values(resolved, result)
                values = worker.values(request, completed, per_replica)
                worker.look_at(request, completed)
        seconds = time.monotonic() - times.began_s
        if self._verification is not None:
            self._verification.after_run()
            if self._verification.done:
                self._verification = None
        if self._guard is not None:
            self._guard.after_run(request.names, *hook_request, gather, seconds)
        if self._afterwards and not worker.accumulation.pending:
            self._afterwards[0].after_run(request.names, seconds)
            if self._afterwards[0].done:
                del self._afterwards[0]
        return values

    @property
    def workers(self) -> Comm:
        """The workers as a communicator of mpi4py, for the script's own reductions and barriers; ranks are worker ids.

        With a model in stages it has the workers of this one's stage, of which each replica has one. Parallax itself
        does not use it. `MPI.COMM_WORLD` includes the servers, which never answer.
        """
        return self._workers

    @property
    def consumed(self) -> int:
        """The number of batches that training has consumed since the job first began, over all resumes.

        Every training run adds the number of workers: each of them consumes one batch. Runs that only evaluate add
        nothing; where an update uses several batches, each of their runs counts. A checkpoint stores the number, so
        that it continues after a resume by any number of workers. It is equal on all workers, so worker `worker_id` may
        read batch `consumed + worker_id` of one sequence for all.

        Raises:
            SessionError: in asynchronous training, where each worker has its own position.
        """
        positions = self._worker.positions
        if positions is None or not positions.is_equal:
            raise SessionError(
                "The number of batches consumed by all workers is known only in synchronous training, and this job is "
                "asynchronous. Count this worker's own runs."
            )
        return positions.consumed

    @property
    def accumulate_steps(self) -> int:
        """The number of runs of the train_op per update; fetches that need gradients are None in all but the last."""
        return self._worker.accumulation.steps

    def raw_session(self) -> PlainSession:
        """The session without hooks and without lists per replica."""
        return PlainSession(self._worker)

    def should_stop(self) -> bool:
        """Whether a hook or a queue runner requested a stop, or the session is closed."""
        return self._worker.raw is None or bool(self._monitored.should_stop())

    def close(self) -> None:
        """Ends the session; a second call has no effect."""
        self._end(None, None, None)

    def __enter__(self) -> Session:
        with ExitStack() as defaults:  # graph and session, as tf.Session does it; Saver and `eval` rely on them
            defaults.enter_context(self.graph.as_default())
            defaults.enter_context(default_session(DefaultSession(self._worker, self._run)))
            self._defaults.append(defaults.pop_all())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        try:
            return self._end(kind, error, trace)
        finally:
            self._defaults.pop().close()

    def _end(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        """Ends the session if it is open; returns whether the error only means the end of the data."""
        if self._worker.raw is None:
            return False
        if self._worker.accumulation.pending and error is None and self._workers.Get_rank() == 0:
            log.info(self._worker.accumulation.text_of_rest())
        failed = self._failure_of_tails()
        if failed is not None and (error is None or isinstance(error, _GOOD_ENDS)):
            kind, error, trace = type(failed), failed, failed.__traceback__
        if self._guard is not None and (error is None or isinstance(error, _GOOD_ENDS)) and failed is None:
            self._guard.close()
        try:
            is_end = bool(self._monitored.__exit__(kind, error, trace))
        finally:
            self._worker.raw = None
            self._worker.watch.close()
        if self._worker.log is not None and (error is None or is_end):
            self._worker.log.finish()
        if failed is not None and error is failed and not is_end:
            raise failed
        return is_end

    def settle(self) -> bool:
        """Waits until no run is in flight; every worker must call it.

        Returns:
            Whether a loop can restart on this session: no gradients await an update.
        """
        failed = self._failure_of_tails()
        if failed is not None:
            raise failed
        self.meet()
        return not self._worker.accumulation.pending

    def meet(self) -> None:
        """Averages the islands now, between two runs, unless they have met after the last update.

        Every worker must call it after the same update; without islands it does nothing.

        Raises:
            SessionError: islands have made different numbers of updates, or updates have batches left.
        """
        if self._meetings is not None and not self._worker.accumulation.pending:
            self._meetings.meet()

    def _failure_of_tails(self) -> BaseException | None:
        """Waits until no run is in flight; returns the error of a failed one."""
        try:
            if self._direct is not None:
                with self._worker.watch.run("what the last steps have left to do", "end of steps"):
                    self._direct.settle()
        except Exception as failed:
            return failed
        return None

    def exchange_report(self) -> ExchangeReport:
        """Returns the bytes of the training exchanges so far, predicted and counted, summed over the workers.

        All workers must call it. The prediction is the plan's formula at the measured touched rows; the predictions of
        a plan made with profiles are listed next to it. After a change of plan it covers the steps since then.
        """
        self._check_open()
        with self._worker.watch.run("exchange_report()", "exchange_report()"):
            counters, roundings = self._worker.counters, self._worker.roundings
            counted = self._worker.raw.run([c.tensor for c in counters])
            measured = self._worker.raw.run([r.tensor for r in roundings])
            changes = tuple(self._worker.changes)
            report = exchange_report(counters, counted, self._size, self._worker.plan, changes)
            step_s = measured_step(None if self._worker.log is None else self._worker.log.times())
            return replace(report, rounded=rounding_report(roundings, measured), step_s=step_s)

    def change_plan(self, plan: Plan | str | Path) -> None:
        """Switches to another plan, between two runs; all workers must call it after the same run, with the same plan.

        Variables move to the places of the new plan, and keep their values. Its servers must be those of the job: one
        that starts without servers has none later. Worker 0 prints how long it took.

        Args:
            plan: of the same graph and machines, or its file (`parallax plan --json`) on the machine of worker 0.

        Raises:
            PlanError: on all workers: it is of another graph or job, or cannot be executed. The old plan stays.
            SessionError: the session is closed.
        """
        self._check_open()
        if self._plan_change is None:
            raise SessionError(
                "Only a session that parallel_run has opened, and whose workers train together, can change its plan."
            )
        with self._worker.watch.run("change_plan", "change_plan"):
            text = self._plan_change.to(plan)
        if self._workers.Get_rank() == 0:
            show(text)

    def _check_open(self) -> None:
        if self._worker.raw is None:
            raise SessionError("The session is closed and cannot run anything.")
