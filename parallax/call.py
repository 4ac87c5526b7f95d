"""A job as a call with a result: how a front end trains in the middle of a script, which then goes on.

The launching process starts a job for a call, and its workers run the same program from its beginning, a script or a
function. They come to the same call, replay those before it, train together, and leave their program there; worker 0
sends the result back. Calls are counted in the order in which the program makes them, so it must make the same calls
in all processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, NoReturn, TypeVar

from parallax.analysis.graph_decisions import GraphDecisions
from parallax.api import JobEnded, perform, run_job
from parallax.errors import ConfigError, LaunchError, SessionError
from parallax.job_beside import JobFailed
from parallax.planned_call import checked_call
from parallax.runtime.launcher.answering import own_address
from parallax.runtime.launcher.launch import JobEnd
from parallax.runtime.make_job import cluster_of
from parallax.runtime.worker.called import packed_function
from parallax.runtime.worker.ranks import current_process_group
from parallax.runtime.worker.result import CallDone, send_result
from parallax.settings.config import Config
from parallax.settings.environment import Role, settings
from parallax.types import Buffer, Graph, Picklable, Session

_Found = TypeVar("_Found")

_OF_A_VERIFICATION = (Role.VERIFY, Role.VERIFY_WORKER, Role.VERIFY_SINGLE)
_NO_VERIFICATION = (
    "`parallax verify` compares a graph that is given to parallel_run with one process, from the graph's own initial "
    "values. This script trains in its middle, from values of its own, and goes on. Compare the results "
    "of `parallax run --workers 1` and of several workers, or use `parallax run --verify-first K`."
)
_NO_STEP = (
    "A job for call {number} of the program has come to call {own}, which trains to the script's end: the workers' "
    "way through the program is another one. What is called must not depend on the rank, the time or chance."
)
_NO_RESULT = (
    "The workers must come to call {number} of the program as the launching process did, and they ended before: their "
    "way through the program was another one. What is called must not depend on the rank, the time or chance."
)


@dataclass
class _Calls:
    """The calls of the program that this process runs: its script, or inside of `run_function` the function.

    Attributes:
        function: packed, for workers; empty for the script.
        calls: how many it has made.
        jobs: how many have been run for it.
        results: what they gave, as the front end remembers them.
    """

    function: bytes = b""
    calls: int = 0
    jobs: int = 0
    results: list[Picklable] = field(default_factory=list)


_calls = _Calls()


class WorkerCall(NamedTuple):
    """What a worker trains with.

    Attributes:
        session: the session of this worker.
        size: how many workers there are.
        rank: of this one.
        attachment: what the launching process gave to `run_call`.
    """

    session: Session
    size: int
    rank: int
    attachment: Buffer


def next_call() -> int:
    """The number of the call that the program makes now, from 1; asked for once for each call, in every process.

    Raises:
        CallDone: in a worker whose call was an earlier one, when the program has kept `end_call` from ending it.
    """
    _calls.calls += 1
    wanted = settings().call
    if wanted is not None and is_worker() and _calls.calls > wanted:
        raise CallDone
    return _calls.calls


def upcoming_call() -> int:
    """The number that `next_call` gives next."""
    return _calls.calls + 1


def remember(result: Picklable) -> None:
    """Keeps what a call of this process gave, for the workers of later ones, which replay it."""
    _calls.results.append(result)


def remembered() -> tuple[Picklable, ...]:
    """What the calls of this process have given so far, in order."""
    return tuple(_calls.results)


def is_worker() -> bool:
    """Whether this process is a worker of a job, where calls are not launched."""
    return settings().role in (Role.WORKER, Role.VERIFY_WORKER)


def is_replayed(number: int) -> bool:
    """Whether call `number` was made by an earlier job, so that this worker only takes its result over."""
    wanted = settings().call
    return wanted is not None and number < wanted


def attachment() -> Buffer:
    """What the launching process gave to this job's `run_call`; in a worker, until `worker_call` hands it out."""
    return current_process_group().parcel.attachment


def number_of_workers(config: Config | None = None, resource_info: str | Path | None = None) -> int:
    """How many workers a call's job has, in the launching process and in a worker."""
    if is_worker():
        return current_process_group().size
    call = checked_call(None, resource_info, True, config)
    return cluster_of(call.resource_info, call.config, call.wanted).num_workers


def can_drive(config: Config | None = None, resource_info: str | Path | None = None) -> bool:
    """Whether worker 0 of a call's job can reach this process: it is on this machine, or its address is known here."""
    call = checked_call(None, resource_info, True, config)
    leader = cluster_of(call.resource_info, call.config, call.wanted).leader
    if leader.is_this_machine:
        return True
    try:
        own_address(leader.address)
    except OSError:  # such as a name that only ssh's configuration knows
        return False
    return True


def jobs_run() -> int:
    """For how many calls of this process jobs were run that ended well."""
    return _calls.jobs


def count_job() -> None:
    """Counts a call that workers of a waiting job have carried out."""
    _calls.jobs += 1


def run_call(
    number: int,
    graph: Graph,
    attachment: Buffer = b"",
    config: Config | None = None,
    resource_info: str | Path | None = None,
    sync: bool = True,
    resumes: bool = False,
) -> memoryview:
    """Runs a job for a call, in the launching process, and gives what worker 0 passed to `end_call`.

    Args:
        number: of the call (`next_call`).
        graph: a tf.Graph that trains on one device, with its update ops.
        attachment: what workers are given; neither copied nor looked at.
        config: settings.
        resource_info: a resource file; None for workers on this machine.
        sync: whether every step takes the gradients of all workers.
        resumes: whether the call, when a job that failed is started again, goes on from what it has kept itself.

    Returns:
        The result, for reading only.

    Raises:
        JobFailed: the job has failed; a SystemExit with the job's exit status.
        JobEnded: the command line asked for something else than a job: a plan, a profile.
        ConfigError: it asked for a verification.
        LaunchError: the workers ended without coming to the call.
        ParallaxError: before anything is started, when graph, plan, configuration or resource file break a rule.
    """
    end = _job_of(number, graph, attachment, config, resource_info, sync, resumes)
    if end.status:
        raise JobFailed(end.status)
    if end.result is None:
        raise LaunchError(_NO_RESULT.format(number=number))
    _calls.jobs += 1
    return end.result


def run_to_the_end(
    number: int,
    graph: Graph,
    attachment: Buffer = b"",
    config: Config | None = None,
    resource_info: str | Path | None = None,
    sync: bool = True,
) -> WorkerCall:
    """Trains from this call to the end of the program: workers run all of it, and the launching process ends here.

    Every worker must call it. Arguments are those of `run_call`.

    Returns:
        In a worker: its session, and what the launching process attached.

    Raises:
        JobEnded: in the launching process, with the job's exit status.
        ConfigError: the command line asked for a verification.
        SessionError: in a worker, at another call than its job is for.
        ParallaxError: as `parallel_run`.
    """
    if is_worker():
        if settings().call != number:
            raise SessionError(_NO_STEP.format(number=settings().call, own=number))
        return worker_call(graph, config, sync)
    raise JobEnded(_job_of(number, graph, attachment, config, resource_info, sync).status)


def worker_call(
    graph: Graph, config: Config | None = None, sync: bool = True, decisions: GraphDecisions | None = None
) -> WorkerCall:
    """Opens the session of this worker for the call that its job is for; every worker must call it.

    Args:
        graph: the tf.Graph that the launching process gave to `run_call`.
        config: as there; hooks and session options are this worker's.
        sync: as there.
        decisions: what the launching process has decided of the graph, where the worker has the graph from it.

    Raises:
        ParallaxError: as `parallel_run` in a worker.
    """
    call = replace(checked_call(graph, None, sync, config), decisions=decisions)
    if call.wanted.role != Role.WORKER:
        raise SessionError("Only a worker has a session: the launching process starts a job by `run_call`.")
    members = current_process_group()
    session, size, rank, _ = perform(call)
    given = members.parcel.attachment
    members.parcel = members.parcel.without_raw()  # it may be large, and the front end may need it no more
    return WorkerCall(session, size, rank, given)


def end_call(result: Buffer = b"") -> NoReturn:
    """Ends this worker's program, with success; every worker must call it.

    Args:
        result: what `run_call` gives in the launching process; of worker 0 alone, others give nothing.

    Raises:
        CallDone: always; it passes through the script, whose `finally` clauses are carried out.
    """
    if current_process_group().rank == 0:
        send_result(result)
    raise CallDone


def _job_of(
    number: int,
    graph: Graph,
    attachment: Buffer,
    config: Config | None,
    resource_info: str | Path | None,
    sync: bool,
    resumes: bool = False,
) -> JobEnd:
    """Runs the job of a call, in the launching process."""
    call = checked_call(graph, resource_info, sync, config)
    wanted = replace(call.wanted, call=number)
    call = replace(call, wanted=wanted, function=_calls.function, attachment=attachment, resumes=resumes)
    if wanted.role in _OF_A_VERIFICATION:
        raise ConfigError(_NO_VERIFICATION)
    if wanted.role == Role.WORKER:
        raise SessionError("A worker starts no job: it trains in `worker_call`, and takes over what `is_replayed`.")
    if wanted.role != Role.LAUNCH:
        perform(call)
    return run_job(call)


def run_function(function: Callable[[], _Found]) -> _Found:
    """Calls a function whose calls are run by workers that call the same function, not the program around it.

    So a notebook trains: what the function makes (model, data) is made in every worker too.

    Args:
        function: takes no arguments; it may be defined in a notebook, and is pickled with what it uses from around it.

    Returns:
        What the function returns, here.

    Raises:
        ConfigError: the function cannot be pickled.
    """
    if is_worker():
        return function()
    with _in_program(packed_function(function)):
        return function()


@contextmanager
def _in_program(function: bytes) -> Iterator[None]:
    """Counts calls inside as those of a function."""
    before = _calls.function, _calls.calls, _calls.results
    _calls.function, _calls.calls, _calls.results = function, 0, []
    try:
        yield
    finally:
        _calls.function, _calls.calls, _calls.results = before
