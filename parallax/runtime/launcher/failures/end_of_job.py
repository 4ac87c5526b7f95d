"""Decides when and how a job ends, as a state machine: (state, event, time) -> (next state, actions).

It reads no clock, pipe or process, so simulated and real jobs run the same code; its loop is `launcher/launch.py`.
Precedence, when several things are known about a job that cannot go on:

1. a signal to the launcher, or no reader of its output; where workers can save, they do so at the first SIGTERM and
   end the job themselves, unless another signal comes or their time is over;
2. a failure that a rank reported, unless a process was silent before, which may be its cause;
3. a worker's report that its checkpoint folder has not responded for too long;
4. a silent process (liveness.py);
5. ranks that wait in vain (stall.py), unless a process may be silent: the state of its rank is then unknown.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from parallax.runtime.launcher.failures.cause import BROKEN, HOST_LOST, SILENT, STALLED, STOPPED, YIELDED, EndCause
from parallax.runtime.launcher.failures.first_failure import (
    EXIT_UNKNOWN,
    Ending,
    FailureDetector,
    mpirun_signal_text,
    signal_name,
)
from parallax.runtime.launcher.failures.liveness import HOST, MPIRUN, MPIRUN_STOPPED, Liveness, silence_text
from parallax.runtime.launcher.failures.stall import StallWatch
from parallax.runtime.supervisor.control import OVERDUE
from parallax.runtime.supervisor.frames import Control, Exit, Frame
from parallax.runtime.supervisor.limits import PREEMPTION, Limits
from parallax.runtime.supervisor.state_machine import ReaderGone, SignalReceived

EXIT_STALLED = 124
EXIT_PREEMPTED = 75
"""EX_TEMPFAIL of sysexits.h: the same command may succeed later. Shells, mpirun, batch systems and the other statuses
here do not use it, and Python exits with it only on request.
"""

GRACE_S = 5.0  # from SIGTERM to SIGKILL for mpirun; it takes two seconds to end its ranks


@dataclass(frozen=True, slots=True)
class FrameReceived:
    """A rank's supervisor has sent a frame."""

    frame: Frame


@dataclass(frozen=True, slots=True)
class StopsSampled:
    """The processes on this machine that are stopped by a signal: supervisors, by rank, and mpirun."""

    agents: tuple[int, ...]
    mpirun: bool


@dataclass(frozen=True, slots=True)
class MpirunSignalled:
    """Another process sent mpirun a signal that asks it to end, which mpirun does not receive (launcher/launch.py)."""

    number: int


@dataclass(frozen=True, slots=True)
class FramesDrained:
    """The launcher has read all available data."""


@dataclass(frozen=True, slots=True)
class HostsReturned:
    """Hosts outside the job respond: its workers must save and end, so that it continues on these hosts too."""


JobEvent = FrameReceived | SignalReceived | ReaderGone | StopsSampled | MpirunSignalled | HostsReturned | FramesDrained


@dataclass(frozen=True, slots=True)
class SignalMpirun:
    """Send a signal to mpirun."""

    number: int


@dataclass(frozen=True, slots=True)
class JobState:
    """State of a job, as the launcher knows it.

    Attributes:
        judge: the failures.
        stalls: the ranks that wait in vain.
        alive: the silent processes.
        signals: those that the launcher received.
        is_unread: its output has no reader.
        mpirun_signal: that another process has sent to mpirun; 0 for none.
        grace_s: how long workers have to save at the first SIGTERM; None when they cannot.
        save_until_s: when that time is over; None before the signal.
        shall_yield: workers must save and end at the next training run, however late that is.
        ask_s: when either request is sent again, because a rank may only now start.
        saved_step: the step that they have saved; they end by themselves.
        overdue: the rank whose checkpoint folder does not respond, and its report.
        stop: why the job is ended, when it is not a failure of a rank.
        heeded: how many signals had arrived by then.
        kill_s: when mpirun is killed; None while the job runs, infinite once that is done.
    """

    judge: FailureDetector
    stalls: StallWatch
    alive: Liveness
    signals: tuple[int, ...] = ()
    is_unread: bool = False
    mpirun_signal: int = 0
    grace_s: float | None = None
    save_until_s: float | None = None
    shall_yield: bool = False
    ask_s: float = 0.0
    saved_step: int | None = None
    overdue: tuple[int, str] | None = None
    stop: Ending | None = None
    heeded: int = 1
    kill_s: float | None = None

    def conclude(self, mpirun_status: int, tail: Callable[[int], Sequence[str]]) -> Ending:
        """Returns how the job ended, after mpirun's end; the arguments are those of `FailureDetector.conclude`."""
        if self.saved_step is not None and self.shall_yield and not self.signals:
            return Ending(EXIT_PREEMPTED, "", EndCause(YIELDED))
        if self.saved_step is not None:
            what = f"preempted at step {self.saved_step}, saved. Start the job again to continue from there."
            return Ending(EXIT_PREEMPTED, what, EndCause(STOPPED))
        if self.stop is None:
            return self.judge.conclude(mpirun_status, tail)
        if self.signals and self.stop.status == 128 + self.signals[0]:
            return replace(self.stop, message="\n".join(filter(None, [self.stop.message, self.judge.describe(tail)])))
        return self.stop


def new_job(
    names: tuple[str, ...],
    hosts: tuple[str, ...],
    num_workers: int,
    stall_timeout_s: float,
    limits: Limits,
    now_s: float,
    grace_s: float | None = None,
) -> JobState:
    """Returns the state of a job before any message; `names` and `hosts` are by rank, `grace_s` as in `JobState`."""
    stalls = StallWatch.of(num_workers, stall_timeout_s)
    return JobState(FailureDetector(names), stalls, Liveness(hosts, now_s, limits, now_s), grace_s=grace_s)


def step(state: JobState, event: JobEvent, now_s: float) -> tuple[JobState, tuple[SignalMpirun, ...]]:
    """Returns the state after an event, and the actions to execute now, in this order."""
    if isinstance(event, FrameReceived):
        return _take(state, event.frame, now_s), ()
    if isinstance(event, SignalReceived):
        return replace(state, signals=(*state.signals, event.number)), ()
    if isinstance(event, ReaderGone):
        return replace(state, is_unread=True), ()
    if isinstance(event, MpirunSignalled):
        return replace(state, mpirun_signal=state.mpirun_signal or event.number), ()
    if isinstance(event, HostsReturned):
        return replace(state, shall_yield=True), ()
    if isinstance(event, StopsSampled):
        return replace(state, alive=state.alive.look_at_stopped(event.agents, event.mpirun, now_s)), ()
    state, requests = _ask(replace(state, alive=state.alive.look(now_s)), now_s)
    state, actions = _decide(state, now_s)
    return state, (*requests, *actions)


def process_line(state: JobState, line: str) -> tuple[JobState, list[str]]:
    """Returns the state after one line of mpirun's own output, and the lines to show to the user now."""
    judge, shown = state.judge.process_line(line)
    return replace(state, judge=judge), shown


def _take(state: JobState, frame: Frame, now_s: float) -> JobState:
    stalls = state.stalls
    if isinstance(frame, Control) and frame.message.get("kind") == "preempted":
        state = replace(state, saved_step=int(str(frame.message["step"])))
    if isinstance(frame, Control) and frame.message.get("kind") == OVERDUE and state.overdue is None:
        state = replace(state, overdue=(frame.rank, str(frame.message.get("what", ""))))
    if isinstance(frame, Control):
        stalls = stalls.observe(frame.rank, frame.message, now_s)
    elif isinstance(frame, Exit):
        stalls = stalls.observe_exit(frame.rank, frame.status, now_s)
    alive = state.alive.observe(frame, now_s)
    return replace(state, judge=state.judge.observe(frame, now_s), stalls=stalls, alive=alive)


def _ask(state: JobState, now_s: float) -> tuple[JobState, tuple[SignalMpirun, ...]]:
    """Asks the workers to save, if SIGTERM was the first signal and they can save, or if they must yield."""
    if state.save_until_s is None and state.grace_s is not None and state.signals[:1] == (signal.SIGTERM,):
        state = replace(state, save_until_s=now_s + state.grace_s, ask_s=now_s)
    is_requested = _is_saving(state, now_s) or (state.shall_yield and not state.signals)
    if not is_requested or state.saved_step is not None or state.kill_s is not None or now_s < state.ask_s:
        return state, ()
    return replace(state, ask_s=now_s + state.alive.limits.word_s), (SignalMpirun(PREEMPTION),)


def _is_saving(state: JobState, now_s: float) -> bool:
    """Whether workers have time left to save and to end."""
    return state.save_until_s is not None and len(state.signals) == 1 and now_s < state.save_until_s


def _decide(state: JobState, now_s: float) -> tuple[JobState, tuple[SignalMpirun, ...]]:
    if state.kill_s is not None:
        if now_s >= state.kill_s or (len(state.signals) > state.heeded and state.kill_s != float("inf")):
            return replace(state, kill_s=float("inf")), (SignalMpirun(signal.SIGKILL),)
        return state, ()
    stop, at_once = _reason(state, now_s)
    if stop is None and not (state.judge.has_failed(now_s) and not _may_follow(state, now_s)):
        return state, ()
    state = replace(state, heeded=max(1, len(state.signals)))
    if at_once:
        return replace(state, stop=stop, kill_s=float("inf")), (SignalMpirun(signal.SIGKILL),)
    return replace(state, stop=stop, kill_s=now_s + GRACE_S), (SignalMpirun(signal.SIGTERM),)


def _reason(state: JobState, now_s: float) -> tuple[Ending | None, bool]:
    """Returns the reason to end the job other than a rank's failure, and whether mpirun cannot be asked to end it."""
    if state.signals and not _is_saving(state, now_s):
        late = state.save_until_s is not None and len(state.signals) == 1
        within = f", and the workers have not saved within {state.grace_s:g} s" if late else ""
        what = f"the launcher got {signal_name(state.signals[0])}{within}. The job was ended."
        return Ending(128 + state.signals[0], what, EndCause(STOPPED)), False
    if state.is_unread:
        return Ending(128 + signal.SIGPIPE, cause=EndCause(STOPPED)), False
    if state.judge.knows_failure() and not _may_follow(state, now_s):
        return None, False
    if number := state.mpirun_signal:
        return Ending(128 + number, mpirun_signal_text(number), EndCause(BROKEN)), False
    if state.overdue is not None:
        rank, what = state.overdue
        text = f"{state.judge.names[rank]} waits for a disk: {what} The job was ended."
        return Ending(EXIT_STALLED, text, EndCause(STALLED, (rank,))), False
    silence = state.alive.verdict(now_s)
    if silence is not None:
        text = silence_text(silence, state.alive, state.judge.names.__getitem__)
        status = EXIT_UNKNOWN if silence.kind == HOST else EXIT_STALLED
        cause = EndCause(HOST_LOST if silence.kind == HOST else SILENT, silence.ranks)
        return Ending(status, text, cause), silence.kind in (MPIRUN, MPIRUN_STOPPED)
    if state.judge.knows_failure() or state.alive.is_in_doubt(now_s):
        return None, False
    stall = state.stalls.verdict(now_s)
    if stall is None:
        return None, False
    return Ending(EXIT_STALLED, f"the job stalled: {stall}", EndCause(STALLED)), False


def _may_follow(state: JobState, now_s: float) -> bool:
    """Whether the known failure may be the consequence of an older silence."""
    failure = state.judge.failure
    return failure is not None and state.alive.is_late_since(failure.since_s, now_s)
