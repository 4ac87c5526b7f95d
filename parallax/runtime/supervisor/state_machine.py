"""Decides what a supervisor does, as a state machine: (state, event, time) -> (next state, actions).

It reads no clock, file or pipe, so simulated and real jobs run the same code; `agent.py` is its loop.

Any one of three signs shows that a rank's worker is alive: its heartbeat (sent by a Python thread, also while
TensorFlow compiles or waits), growing processor time (even if other code holds Python's lock), and the kernel calling
it runnable (on a machine that gives it no processor). A worker stopped by a signal is reported separately, because that
does not pass.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from parallax.runtime.supervisor.frames import Exit, Frame, Pulse
from parallax.runtime.supervisor.limits import LIMITS, Limits, observed_s
from parallax.runtime.supervisor.processes import STOPPED, Vitals

# From SIGTERM to SIGKILL. mpirun itself kills a supervisor one second after its SIGTERM.
GRACE_S = 0.6

_AT_WORK = "Rt"  # runnable, or possibly stopped by a debugger


@dataclass(frozen=True, slots=True)
class VitalsSampled:
    """The worker's vitals, sampled every `beat_s`."""

    vitals: Vitals


@dataclass(frozen=True, slots=True)
class HeartbeatReceived:
    """The worker sent a heartbeat with its current activity."""

    doing: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class KeepaliveReceived:
    """The launcher's keepalive signal arrived: mpirun, the network between and the launcher are well."""


@dataclass(frozen=True, slots=True)
class PreemptionReceived:
    """The launcher signals that the job is preempted: its workers must save and end."""


@dataclass(frozen=True, slots=True)
class SignalReceived:
    """This process received a signal that asks it to end what it watches. mpirun ends ranks with SIGTERM."""

    number: int


@dataclass(frozen=True, slots=True)
class ReaderGone:
    """This process's output has no reader; for a supervisor, mpirun's daemon on this host is dead."""


@dataclass(frozen=True, slots=True)
class WorkerEnded:
    """The worker has ended, with this status (minus the signal), and all its output has been forwarded."""

    status: int


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Nothing has happened."""


SupervisorEvent = (
    VitalsSampled
    | HeartbeatReceived
    | KeepaliveReceived
    | PreemptionReceived
    | SignalReceived
    | ReaderGone
    | WorkerEnded
    | TimePassed
)


@dataclass(frozen=True, slots=True)
class Tell:
    """Send a frame."""

    frame: Frame


@dataclass(frozen=True, slots=True)
class SignalWorker:
    """Send a signal to the worker's process group."""

    number: int


@dataclass(frozen=True, slots=True)
class TellPreemption:
    """Notify the worker that the job is preempted."""


@dataclass(frozen=True, slots=True)
class Leave:
    """The supervisor's own end, with this exit status; `orphaned` when there is no launcher any more."""

    status: int
    orphaned: bool


SupervisorAction = Tell | SignalWorker | TellPreemption | Leave


@dataclass(frozen=True, slots=True)
class SupervisorState:
    """State of a supervisor.

    Attributes:
        rank: its rank.
        sampled_s: when it last sampled its worker.
        limits: of the job.
        ticks: the worker's processor time then.
        stopped_s, quiet_s: as in `Pulse`.
        unheard_s: how long the launcher's keepalive signal has been missing; the launcher sends it once a rank has
            reported its start.
        doing: the worker's last heartbeat; empty before the first.
        preempted: whether it has notified its worker of a preemption; the launcher repeats the signal.
        is_end_requested: whether it was asked to end its worker.
        by: the signal that asked it, if it was not mpirun's.
        orphaned: whether there is no launcher any more.
        kill_s: when the worker is killed if it has not ended.
    """

    rank: int
    sampled_s: float
    limits: Limits = LIMITS
    ticks: int = -1
    stopped_s: float = 0.0
    quiet_s: float = 0.0
    unheard_s: float = 0.0
    doing: Mapping[str, object] = field(default_factory=dict)
    preempted: bool = False
    is_end_requested: bool = False
    by: int = 0
    orphaned: bool = False
    kill_s: float = float("inf")

    @property
    def due_s(self) -> float:
        """The time of its next action if no event occurs."""
        return min(self.sampled_s + self.limits.beat_s, self.kill_s)


def step(
    state: SupervisorState, event: SupervisorEvent, now_s: float
) -> tuple[SupervisorState, tuple[SupervisorAction, ...]]:
    """Returns the state after an event, and the actions to execute now, in this order."""
    after, actions = _react(state, event, now_s)
    if now_s >= after.kill_s:
        return replace(after, kill_s=float("inf")), (*actions, SignalWorker(signal.SIGKILL))
    return after, actions


def _react(
    state: SupervisorState, event: SupervisorEvent, now_s: float
) -> tuple[SupervisorState, tuple[SupervisorAction, ...]]:
    if isinstance(event, VitalsSampled):
        return _look(state, event.vitals, now_s)
    if isinstance(event, HeartbeatReceived):
        return replace(state, doing=event.doing, quiet_s=0.0), ()
    if isinstance(event, KeepaliveReceived):
        return replace(state, unheard_s=0.0), ()
    if isinstance(event, PreemptionReceived):
        return replace(state, preempted=True, unheard_s=0.0), () if state.preempted else (TellPreemption(),)
    if isinstance(event, SignalReceived):
        if state.is_end_requested:
            return state, ()
        by = 0 if event.number == signal.SIGTERM else event.number
        return replace(state, is_end_requested=True, by=by, kill_s=now_s + GRACE_S), (SignalWorker(signal.SIGTERM),)
    if isinstance(event, ReaderGone):
        return _kill_orphan(state)
    if isinstance(event, WorkerEnded):
        return replace(state, kill_s=float("inf")), _end_worker(state, event.status)
    return state, ()


def _look(state: SupervisorState, vitals: Vitals, now_s: float) -> tuple[SupervisorState, tuple[SupervisorAction, ...]]:
    passed_s = observed_s(now_s, state.sampled_s, state.limits.beat_s)
    stopped = vitals.state == STOPPED
    at_work = stopped or vitals.state in _AT_WORK or vitals.ticks != state.ticks
    after = replace(
        state,
        sampled_s=now_s,
        ticks=vitals.ticks,
        stopped_s=state.stopped_s + passed_s if stopped else 0.0,
        quiet_s=0.0 if at_work else state.quiet_s + passed_s,
        unheard_s=state.unheard_s + passed_s,
    )
    if after.unheard_s >= after.limits.unheard_s:
        return _kill_orphan(after)
    return after, (Tell(Pulse(after.rank, after.stopped_s, after.quiet_s, after.doing)),)


def _kill_orphan(state: SupervisorState) -> tuple[SupervisorState, tuple[SupervisorAction, ...]]:
    return replace(state, orphaned=True, is_end_requested=True), (SignalWorker(signal.SIGKILL),)


def _end_worker(state: SupervisorState, status: int) -> tuple[SupervisorAction, ...]:
    if state.orphaned:
        return (Leave(128 + signal.SIGKILL, True),)
    if state.by:
        status = -state.by
    leave = Leave(status if status >= 0 else 128 - status, False)
    return (Tell(Exit(state.rank, status, state.is_end_requested, state.by)), leave)
