"""Calls of a running script that workers execute: of `fit`, and of the steps of the script's own loops.

The launching process drives the workers: it has the graph, the data and the results. Workers receive the graph, and
never run the script (parallax/functions/remote/serve_driver.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from parallax.analysis.cut.plan_stages import count_stages
from parallax.analysis.graph_decisions import GraphDecisions
from parallax.base.errors import ConfigError, SessionError
from parallax.base.types import Buffer, Graph, Session
from parallax.entry.api import perform
from parallax.entry.planned_call import checked_call
from parallax.runtime.make_job import cluster_of
from parallax.runtime.worker.ranks import current_process_group
from parallax.settings.config import Config
from parallax.settings.environment import Role, settings
from parallax.settings.merge import merge_settings

_OF_A_VERIFICATION = (Role.VERIFY, Role.VERIFY_WORKER, Role.VERIFY_SINGLE)
_NO_VERIFICATION = (
    "`parallax verify` compares a graph that is given to parallel_run with one process, from the graph's own "
    "initial values. This script calls fit or steps of parallax.function, which continue from the script's current "
    "values. Compare the results of `parallax run --workers 1` and of several workers, or use `parallax run "
    "--verify-first K`."
)
_IN_A_WORKER = (
    "This process is a worker of parallel_run, which runs the whole script, so it cannot start workers for fit, "
    "train_on_batch or a step of parallax.function. Put the two into separate scripts."
)


@dataclass
class _Calls:
    """The calls of the script that this process runs.

    Attributes:
        calls: the number of calls so far.
        jobs: the number of them that workers have executed.
    """

    calls: int = 0
    jobs: int = 0


_calls = _Calls()


def next_call() -> int:
    """Returns the number of the script's current call, from 1; to be called once for each call."""
    _calls.calls += 1
    return _calls.calls


def upcoming_call() -> int:
    """The next result of `next_call`."""
    return _calls.calls + 1


def jobs_run() -> int:
    """The number of this process's calls that workers have executed."""
    return _calls.jobs


def count_job() -> None:
    """Counts a call that workers have executed."""
    _calls.jobs += 1


def is_launching() -> bool:
    """Whether this process has its calls executed by workers; otherwise it uses a call's graph for another command.

    Raises:
        ConfigError: the command line requests a verification.
        SessionError: this process is a worker.
    """
    role = settings().role
    if role in _OF_A_VERIFICATION:
        raise ConfigError(_NO_VERIFICATION)
    if role == Role.WORKER:
        raise SessionError(_IN_A_WORKER)
    return role == Role.LAUNCH


def count_workers(config: Config | None = None, resource_info: str | Path | None = None) -> int:
    """The number of workers in a call's job."""
    call = checked_call(None, resource_info, True, config)
    return cluster_of(call.resource_info, call.config, call.requested).num_workers


def count_batch_parts(config: Config | None = None, resource_info: str | Path | None = None) -> int:
    """The number of parts into which a call's job splits the batch of a training step: replicas times micro-batches."""
    merged = merge_settings(config or Config(), settings())
    return max(1, count_workers(config, resource_info) // count_stages(merged)) * merged.accumulate_steps


def perform_here(
    number: int, graph: Graph, config: Config | None = None, resource_info: str | Path | None = None
) -> NoReturn:
    """Executes the command line's command on a call's graph instead of training: a plan, a profile.

    Args:
        number: of the call (`next_call`).
        graph: a tf.Graph that trains on one device, with its update ops.
        config: settings.
        resource_info: a resource file; None for workers on this machine.

    Raises:
        JobEnded: when it is done.
        ParallaxError: as `parallel_run`.
    """
    call = checked_call(graph, resource_info, True, config)
    perform(replace(call, requested=replace(call.requested, call=number)))
    raise AssertionError("a process that is no worker ends here")


def worker_session(graph: Graph, config: Config, decisions: GraphDecisions) -> tuple[Session, int, int]:
    """Opens the session of this worker, which the launching process drives; every worker must call it.

    Args:
        graph: a tf.Graph, from the launching process.
        config: the launching process's configuration.
        decisions: the launching process's rewrites of the graph.

    Returns:
        The session, the number of workers and the rank of this one.

    Raises:
        ParallaxError: as `parallel_run` in a worker.
    """
    session, size, rank, _ = perform(replace(checked_call(graph, None, True, config), decisions=decisions))
    members = current_process_group()
    members.parcel = members.parcel.without_raw()  # it may be large, and is not needed any more
    return session, size, rank


def get_attachment() -> Buffer:
    """The data that the launching process has attached to this worker's job."""
    return current_process_group().parcel.attachment
