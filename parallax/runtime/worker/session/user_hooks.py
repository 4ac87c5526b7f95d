"""Calls the user's session hooks on a worker's session as TensorFlow does, followed by the project's own hook.

A hook of the user's is called with names of the user's graph. Hooks that only worker 0 has may not fetch values that
all workers must take part in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from parallax.base.errors import SessionError
from parallax.base.types import Coordinator, Graph, Hook, RunArgs, RunContext, RunValues, Session
from parallax.runtime.worker.session.fetches import Request
from parallax.runtime.worker.session.names import fetch_text
from parallax.runtime.worker.session.resolved_run import ResolvedRun
from parallax.runtime.worker.session.run_context import NOT_CHIEFS, PlainSession, Run, WorkerContext

v1 = tf.compat.v1


class UserHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """One of the user's hooks; `begin` has been called on it.

    Args:
        hook: the user's.
        worker: the worker of the session.
        is_chiefs: whether worker 0 alone has it.
    """

    def __init__(self, hook: Hook, worker: WorkerContext, is_chiefs: bool = False) -> None:
        self._hook = hook
        self._worker = worker
        self._is_chiefs = is_chiefs
        self._requested: tuple[Request, ResolvedRun] | None = None

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """Called when the session has been created."""
        self._worker.raw = session
        self._call(self._hook.after_create_session, self._session(), coord)

    def before_run(self, run_context: RunContext) -> RunArgs:
        """Forwards the hook's fetches and feeds, in the worker's names."""
        run = self._run()
        constraints = self._call(self._hook.before_run, self._context(run))
        self._pass_on_stop(run_context)
        self._requested = None
        if constraints is None:
            return None
        fetches = [] if constraints.fetches is None else constraints.fetches
        request = self._worker.read(fetches, constraints.feed_dict, per_replica=False)
        resolved = self._worker.names.resolve(request.names, request.feeds, run.gather)
        if self._is_chiefs:
            self._check_runs_alone(run, request)
        run.hook_names += request.names
        run.fed |= request.feeds.keys()
        self._requested = request, resolved
        if self._worker.stages is not None:
            self._worker.stages.add(resolved)
        return v1.train.SessionRunArgs(list(resolved.tensors), resolved.feeds(request.feeds), constraints.options)

    def after_run(self, run_context: RunContext, run_values: RunValues) -> None:
        """Passes the hook its values."""
        results = None
        if self._requested is not None:
            request, resolved = self._requested
            results = self._worker.values(
                request, self._worker.complete_values(resolved, run_values.results), per_replica=False
            )
        values = v1.train.SessionRunValues(results, run_values.options, run_values.run_metadata)
        self._call(self._hook.after_run, self._context(self._run()), values)
        self._pass_on_stop(run_context)

    def end(self, session: Session) -> None:
        """Called when the session ends successfully."""
        self._call(self._hook.end, self._session())

    def _run(self) -> Run:
        if self._worker.run is None:
            raise SessionError("A hook is called within a run of the session that parallel_run returns.")
        return self._worker.run

    def _session(self) -> PlainSession:
        return PlainSession(self._worker, self._is_chiefs)

    def _context(self, run: Run) -> RunContext:
        """The run context that the hook receives."""
        if not self._is_chiefs:
            return run.context
        hook_context = v1.train.SessionRunContext(run.context.original_args, self._session())
        hook_context.request_stop = run.context.request_stop
        return hook_context

    def _check_runs_alone(self, run: Run, request: Request) -> None:
        """Refuses fetches that need other workers, because these do not take part."""
        names, before = self._worker.names, (*run.names, *run.hook_names)
        fed = {*run.fed, *request.feeds}
        without = names.resolve(before, run.fed, run.gather).collectives
        if names.resolve((*before, *request.names), fed, run.gather).collectives != without:
            raise SessionError(NOT_CHIEFS.format(fetch=fetch_text(request.names, ())))

    def _pass_on_stop(self, run_context: RunContext) -> None:
        if self._run().context.stop_requested:
            run_context.request_stop()

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        with self._worker.graph.as_default():
            return function(*arguments)


class LastHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Runs after the user's hooks, when all fetches of a run are known: feeds unneeded inputs with empty values."""

    def __init__(self, worker: WorkerContext) -> None:
        self._worker = worker

    def after_create_session(self, session: Session, coord: Coordinator) -> None:
        """Called when the session has been created."""
        self._worker.raw = session

    def before_run(self, run_context: RunContext) -> RunArgs:
        """Resolves the complete run, and starts watching it."""
        run = self._worker.run
        if run is None:
            return None
        resolved = self._worker.names.resolve((*run.names, *run.hook_names), run.fed, run.gather)
        for_all = partial(self._worker.names.for_all, (*run.names, *run.hook_names), frozenset(run.fed))
        fetch = fetch_text(run.names, run.hook_names)
        self._worker.watch.begin(fetch, resolved.collectives, for_all=for_all)
        return v1.train.SessionRunArgs(None, resolved.empty)


def begin_hooks(hooks: Sequence[Hook], graph: Graph) -> None:
    """Makes the hooks build their ops in the user's graph."""
    with graph.as_default():
        for hook in hooks:
            hook.begin()
