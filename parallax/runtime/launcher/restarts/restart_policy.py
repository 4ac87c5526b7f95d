"""Decides whether a failed job is restarted, when, and on which hosts.

It reads no clock and starts nothing; `restart_loop.py` is its loop. These ends lead to a restart:

1. never: a signal to the launcher, a lost reader of its output, or a job of which no process ever started;
2. always: a rank killed by a signal, a lost supervisor or host, a silent process, a stall, mpirun's own end;
3. an exception or an exit status of the script: once a run has been made, unless the previous job failed in the same
   way and no checkpoint was written between: the failure would recur.

A failure without a new checkpoint since the previous one is quick, and doubles the delay before the next start. With
`min_hosts` a host is excluded that does not respond, or that was the first to fail twice without a new checkpoint
between; when the others have written one, it is tried again at the next start.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from parallax.runtime.launcher.failures.cause import (
    BROKEN,
    HOST_LOST,
    KILLED,
    LOST,
    RAISED,
    SILENT,
    STALLED,
    EndCause,
    Progress,
)

FIRST_WAIT_S, LONGEST_WAIT_S = 2.0, 120.0
FAILURES_OF_A_HOST = 2

_ALWAYS = (KILLED, LOST, HOST_LOST, SILENT, STALLED, BROKEN)
_UNHEARD = (HOST_LOST, SILENT, BROKEN)  # then worker 0's last messages may not have arrived
_OF_A_HOST = (KILLED, LOST, HOST_LOST, SILENT)


@dataclass(frozen=True, slots=True)
class FailedJob:
    """The failure of one of several jobs.

    Attributes:
        cause: its kind.
        reason: the user message, in a line.
        progress: the job's progress.
        host: the host of all ranks that failed first, or the lost host; empty if unknown.
    """

    cause: EndCause
    reason: str
    progress: Progress
    host: str = ""


@dataclass(frozen=True, slots=True)
class StartAgain:
    """The job is restarted after `wait_s`."""

    wait_s: float
    text: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The job is not restarted; `text` says why, and is empty if the job's own message has said everything."""

    text: str = ""


@dataclass(frozen=True, slots=True)
class RestartState:
    """State of the restart policy: the jobs so far.

    Attributes:
        most: how often a job may be restarted.
        hosts: all hosts, by their addresses.
        min_hosts: the minimum of hosts to continue with; None: all of them.
        has_checkpoints: the workers write checkpoints, not the script itself.
        is_behind: the latest checkpoint may be unknown: not every checkpoint is reported.
        is_driven: the process that launched the job drives it, and continues where it was.
        restarts: the number of restarts so far.
        quick: consecutive failures without a new checkpoint between.
        last: the reason of the last failure.
        has_started, has_run: whether a process of any of them has started, and a run was made.
        step: of the latest checkpoint; None while none is known.
        failures: by host, how often in a row it was the first to fail, without a new checkpoint between.
        excluded: hosts that failed again, and have not been tried since.
    """

    most: int
    hosts: tuple[str, ...]
    min_hosts: int | None = None
    has_checkpoints: bool = True
    is_behind: bool = False
    is_driven: bool = False
    restarts: int = 0
    quick: int = 0
    last: EndCause = EndCause()
    has_started: bool = False
    has_run: bool = False
    step: int | None = None
    failures: Mapping[str, int] = field(default_factory=dict)
    excluded: frozenset[str] = frozenset()


def after_failure(state: RestartState, job: FailedJob) -> tuple[RestartState, StartAgain | GiveUp]:
    """Returns the state after a job's end, and the decision."""
    progress, has_saved = job.progress, job.progress.has_saved
    failures = {} if has_saved else dict(state.failures)
    if job.host in state.hosts and job.cause.kind in _OF_A_HOST:
        failures[job.host] = failures.get(job.host, 0) + 1
    again = {host for host, number in failures.items() if number >= FAILURES_OF_A_HOST}
    after = replace(
        state,
        quick=1 if has_saved else state.quick + 1,
        last=job.cause,
        has_started=state.has_started or progress.has_started,
        has_run=state.has_run or progress.has_run,
        step=state.step if progress.step is None else progress.step,
        failures=failures,
        excluded=frozenset(again if has_saved else again | state.excluded),
    )
    if (refusal := _refusal(state, after, job)) is not None:
        return after, GiveUp(refusal)
    after = replace(after, restarts=state.restarts + 1)
    wait_s = 0.0 if after.quick == 1 else min(FIRST_WAIT_S * 2 ** (after.quick - 2), LONGEST_WAIT_S)
    when = f" in {wait_s:.0f} s" if wait_s else ""
    text = f"Restart {after.restarts} of {state.most}{when}: {job.reason}. {_describe_start(after)}"
    return after, StartAgain(wait_s, text)


def after_yield(state: RestartState, progress: Progress) -> RestartState:
    """Returns the state after a job has saved and ended to continue on more hosts."""
    if not progress.has_saved:
        return state
    return replace(state, quick=0, step=progress.step, failures={}, excluded=frozenset())


def list_hosts_to_probe(state: RestartState, hosts: tuple[str, ...]) -> tuple[str, ...]:
    """The hosts to probe: a job would be started on them too, if they responded.

    Args:
        state: after the last failure.
        hosts: those of the running job.
    """
    if state.min_hosts is None or not state.has_checkpoints:
        return ()
    return tuple(host for host in state.hosts if host not in hosts and host not in state.excluded)


def choose_hosts(state: RestartState, answering: Collection[str]) -> tuple[tuple[str, ...], str]:
    """Returns the hosts of the next job, and why there can be none; empty when there can.

    Args:
        state: after the last failure.
        answering: the hosts that can be reached.
    """
    if state.min_hosts is None:
        return state.hosts, ""
    there = tuple(host for host in state.hosts if host in answering)
    chosen = tuple(host for host in there if host not in state.excluded)
    if len(chosen) < state.min_hosts <= len(there):  # a host that fails is better than none
        chosen = there
    if len(chosen) >= state.min_hosts:
        return chosen, ""
    missing_text = ", ".join(host for host in state.hosts if host not in answering)
    few = f"only {len(there)} of {len(state.hosts)} hosts respond"
    return (), f"{few}, and min_hosts is {state.min_hosts}. Missing: {missing_text}."


def describe_hosts(state: RestartState, before: tuple[str, ...], chosen: tuple[str, ...]) -> str:
    """The user message about hosts that are excluded or readmitted; empty if the hosts are those of the last job."""
    lost = [host for host in before if host not in chosen]
    back = [host for host in chosen if host not in before]
    sentences = [f"Left out: {', '.join(lost)}."] if lost else []
    sentences += [f"Taken back: {', '.join(back)}."] if back else []
    return (
        " ".join([*sentences, f"The job continues on {len(chosen)} of {len(state.hosts)} hosts."]) if sentences else ""
    )


def _refusal(before: RestartState, after: RestartState, job: FailedJob) -> str | None:
    """Why the job is not restarted, which may be empty; None when it is."""
    kind = job.cause.kind
    if kind != RAISED and kind not in _ALWAYS:
        return ""
    if not after.has_started:
        return "The job is not started again: none of its processes has started."
    if kind == RAISED and not after.has_run:
        return "The job is not started again: it failed before its first step, and would again."
    is_alike = (kind, job.cause.what) == (before.last.kind, before.last.what)
    if kind == RAISED and is_alike and not job.progress.has_saved:
        at = "" if after.step is None else f" after the checkpoint of step {after.step}"
        return f"The job is not started again: it failed in the same way twice{at}."
    if before.restarts >= before.most:
        return f"The job is not started again: max_restarts is {before.most}."
    return None


def _describe_start(state: RestartState) -> str:
    if state.is_driven:
        return "Continues where the script is."
    if state.step is not None:
        later = " or later" if state.is_behind or state.last.kind in _UNHEARD else ""
        return f"Continues from step {state.step}{later}."
    if state.has_checkpoints:
        return "Starts from the beginning, since there is no checkpoint yet."
    return "Continues from what the script itself has saved."
