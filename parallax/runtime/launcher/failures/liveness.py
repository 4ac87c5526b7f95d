"""Decides which part of a job is silent: a worker or server, a supervisor, a host, or mpirun itself.

Supervisors send a pulse every second, which reports the state of the worker (state_machine.py). Seconds count only
while the launcher reads the pulses, so a launcher that was itself delayed raises no alarm. A slow program does not
matter: its supervisor sends the pulse regardless.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from parallax.report.text import list_first, name_ranks
from parallax.runtime.supervisor.frames import Exit, Frame, Pulse, Start
from parallax.runtime.supervisor.limits import LIMITS, Limits, observed_s

STOPPED, FROZEN, SUPERVISOR, UNSTARTED, HOST, MPIRUN, MPIRUN_STOPPED = (
    *("worker stopped", "worker frozen", "supervisor silent", "not started"),
    *("host lost", "mpirun silent", "mpirun stopped"),
)
"""Kinds of silence."""

_ENDED = float("inf")
_TOLD = 3  # ranks whose last activity a message lists


@dataclass(frozen=True, slots=True)
class Silence:
    """A part of the job has been silent for longer than allowed.

    Attributes:
        kind: one of the above.
        ranks: the affected ranks, ascending.
        seconds: for how long.
        heard_s: when the launcher last received a message of them, on its own clock; infinite when they still report.
    """

    kind: str
    ranks: tuple[int, ...]
    seconds: float
    heard_s: float = float("inf")


@dataclass(frozen=True, slots=True)
class Liveness:
    """Liveness of a job's processes, as the launcher knows it.

    Attributes:
        hosts: the host of each rank.
        observed_s: when the launcher last looked.
        limits: of the job.
        began_s: when the launcher began.
        idle_s: seconds on the launcher's clock that do not count, because it did not look.
        heard_s: when each rank was last heard; None before its start, infinite after its end.
        pulses: the last pulse of each rank.
        starts: the start message of each rank's supervisor.
        first_s: when the first rank started.
        stopped_s: for how long supervisors on this machine have been stopped by a signal, by rank.
        mpirun_stopped_s: for how long mpirun has been stopped.
        stops_sampled_s: when these were last sampled.
    """

    hosts: tuple[str, ...]
    observed_s: float
    limits: Limits = LIMITS
    began_s: float = float("inf")
    idle_s: float = 0.0
    heard_s: tuple[float | None, ...] = ()
    pulses: tuple[Pulse | None, ...] = ()
    starts: tuple[Start | None, ...] = ()
    first_s: float | None = None
    stopped_s: Mapping[int, float] = field(default_factory=dict)
    mpirun_stopped_s: float = 0.0
    stops_sampled_s: float = float("inf")

    def observe(self, frame: Frame, now_s: float) -> Liveness:
        """Processes a frame of a rank's supervisor: it is alive."""
        rank = frame.rank
        at_s = _ENDED if isinstance(frame, Exit) else now_s - self.idle_s
        heard = self.heard_s or (None,) * len(self.hosts)
        if heard[rank] == _ENDED:
            return self
        after = replace(self, heard_s=(*heard[:rank], at_s, *heard[rank + 1 :]))
        if isinstance(frame, Pulse):
            before = self.pulses or (None,) * len(self.hosts)
            return replace(after, pulses=(*before[:rank], frame, *before[rank + 1 :]))
        if isinstance(frame, Start):
            starts = self.starts or (None,) * len(self.hosts)
            first_s = at_s if self.first_s is None else self.first_s
            return replace(after, starts=(*starts[:rank], frame, *starts[rank + 1 :]), first_s=first_s)
        return after

    def look(self, now_s: float) -> Liveness:
        """Records that the launcher has read all available data."""
        passed_s = now_s - self.observed_s
        idle_s = self.idle_s + passed_s - observed_s(now_s, self.observed_s, self.limits.beat_s)
        return replace(self, observed_s=now_s, idle_s=idle_s)

    def look_at_stopped(self, agents: Sequence[int], mpirun: bool, now_s: float) -> Liveness:
        """Records the stopped processes on this machine: supervisors, by rank, and mpirun."""
        passed_s = observed_s(now_s, self.stops_sampled_s, self.limits.beat_s)
        return replace(
            self,
            stopped_s={rank: self.stopped_s.get(rank, 0.0) + passed_s for rank in agents},
            mpirun_stopped_s=self.mpirun_stopped_s + passed_s if mpirun else 0.0,
            stops_sampled_s=now_s,
        )

    def find_late(self, now_s: float) -> tuple[int, ...]:
        """The ranks whose pulse is late, ascending: their state is unknown."""
        clock_s = now_s - self.idle_s - self.limits.late_s
        return tuple(rank for rank, at_s in enumerate(self.heard_s) if at_s is not None and at_s < clock_s)

    def is_late_since(self, since_s: float, now_s: float) -> bool:
        """Whether the pulse of a rank that was late at `since_s` is still late."""
        return any(
            (self.heard_s[rank] or 0.0) < since_s - self.idle_s - self.limits.late_s for rank in self.find_late(now_s)
        )

    def is_in_doubt(self, now_s: float) -> bool:
        """Whether the activity of some rank is unknown: not started, late with its pulse, stopped or quiet."""
        unsure = (p for p in self.pulses if p is not None and self.heard_s[p.rank] != _ENDED)
        missed_s = 1.5 * self.limits.beat_s  # two heartbeats, and rounding in sums of clock differences
        has_unstarted = not self.heard_s or None in self.heard_s
        is_late = bool(self.find_late(now_s))
        return has_unstarted or is_late or any(p.stopped_s > 0 or p.quiet_s > missed_s for p in unsure)

    def verdict(self, now_s: float) -> Silence | None:
        """The silence at `now_s`, or None."""
        limits, clock_s = self.limits, now_s - self.idle_s
        if self.mpirun_stopped_s >= limits.stopped_s:
            return Silence(MPIRUN_STOPPED, (), self.mpirun_stopped_s)
        for rank, seconds in self.stopped_s.items():
            if seconds >= limits.stopped_s:
                return Silence(SUPERVISOR, (rank,), seconds)
        for pulse in self.pulses:
            if pulse is None or self.heard_s[pulse.rank] == _ENDED:
                continue
            if pulse.stopped_s >= limits.stopped_s:
                return Silence(STOPPED, (pulse.rank,), pulse.stopped_s)
            if pulse.quiet_s >= limits.frozen_s:
                return Silence(FROZEN, (pulse.rank,), pulse.quiet_s)
        ages = {rank: clock_s - at_s for rank, at_s in enumerate(self.heard_s) if at_s is not None and at_s != _ENDED}
        silent = tuple(rank for rank, age_s in ages.items() if age_s >= limits.silent_s)
        if silent:
            return self._silent(silent, ages, now_s)
        return self._find_unstarted(clock_s)

    def _find_unstarted(self, clock_s: float) -> Silence | None:
        """The ranks that have not started in time."""
        since_s, limit_s = self.first_s, self.limits.start_s
        if since_s is None:
            since_s, limit_s = self.began_s, self.limits.begin_s
        heard = self.heard_s or (None,) * len(self.hosts)
        ranks = tuple(rank for rank, at_s in enumerate(heard) if at_s is None)
        return Silence(UNSTARTED, ranks, clock_s - since_s) if ranks and clock_s - since_s >= limit_s else None

    def _silent(self, silent: tuple[int, ...], ages: Mapping[int, float], now_s: float) -> Silence | None:
        """The part of the job behind the silence of some ranks, once certain: a host's ranks fall silent one by one."""
        late = self.find_late(now_s)
        first = max(silent, key=lambda rank: ages[rank])
        host = self.hosts[first]
        of_host = tuple(rank for rank in ages if self.hosts[rank] == host)
        kind = SUPERVISOR
        ranks: tuple[int, ...] = (first,)
        if len(set(self.hosts)) > 1 and set(of_host) <= set(late):
            kind, ranks = HOST, of_host
        only_host = len(set(self.hosts)) == 1 and len(ages) > 1
        if set(ages) <= set(late) and (only_host or len({self.hosts[rank] for rank in ages}) > 1):
            kind, ranks = MPIRUN, tuple(ages)
        return Silence(kind, ranks, ages[first], now_s - ages[first])


def silence_text(silence: Silence, alive: Liveness, name_of: Callable[[int], str]) -> str:
    """The user message about a silence: the silent processes, its start, their last activity, and the waiting ranks."""
    seconds = f"{silence.seconds:.0f} s"
    rank = silence.ranks[0] if silence.ranks else 0
    start = alive.starts[rank] if alive.starts else None
    name = name_of(rank)
    worker, agent = (start.worker_pid, start.agent_pid) if start else (0, 0)
    why = {
        STOPPED: f"{name} is silent: a signal stopped its process {worker} {seconds} ago, and it has not continued.",
        FROZEN: f"{name} is silent: its process {worker} has given no sign of life for {seconds}, neither a heartbeat "
        "nor CPU time. All its threads hang, in the kernel or waiting for each other.",
        SUPERVISOR: f"{name} is lost: its supervisor, process {agent}, is stopped or hangs, and has sent nothing for "
        f"{seconds}.",
        UNSTARTED: _unstarted_text(silence.ranks, alive.hosts, seconds),
        HOST: f"host {alive.hosts[rank]} is lost: nothing has arrived from it for {seconds}. The host is down, its "
        "network is cut, or mpirun's daemon there is stopped.",
        MPIRUN: _mpirun_text(alive.hosts, seconds),
        MPIRUN_STOPPED: f"mpirun is silent: a signal stopped it {seconds} ago, and it has not continued.",
    }[silence.kind]
    lines = [f"{why} The job was ended."]
    for one in silence.ranks[:_TOLD]:
        if doing := _describe_activity(alive, one):
            lines.append(f"  last heard of {name_of(one)}: {doing}")
    waiting: dict[str, list[int]] = {}
    for other in range(len(alive.hosts)):
        if other not in silence.ranks and alive.pulses and (pulse := alive.pulses[other]) is not None:
            if fetch := str(pulse.doing.get("fetch", "")):
                waiting.setdefault(fetch, []).append(other)
    lines += [f"  meanwhile {name_ranks(ranks)}: in a run of {fetch}" for fetch, ranks in waiting.items()]
    return "\n".join(lines)


def _mpirun_text(hosts: tuple[str, ...], seconds: str) -> str:
    """The user message when nothing arrives from any rank."""
    why = "this machine's network is cut"
    if len(set(hosts)) == 1:  # no network is needed
        why = f"this machine has too few cores, or too little memory, for {len(hosts)} ranks: start fewer workers"
    return f"mpirun is silent: nothing has arrived from any rank for {seconds}. It hangs, or {why}."


def _unstarted_text(ranks: tuple[int, ...], hosts: tuple[str, ...], seconds: str) -> str:
    """The user message about ranks that did not start."""
    named = tuple(dict.fromkeys(hosts[rank] for rank in ranks))
    where = list_first(named, _TOLD)
    if len(ranks) == len(hosts):
        return f"no rank has started for {seconds}. mpirun hangs, or waits for hosts that do not respond: {where}."
    place = f" on {where}" if len(set(hosts)) > 1 else ""
    return f"{name_ranks(ranks)}{place} did not start within {seconds} of the others."


def _describe_activity(alive: Liveness, rank: int) -> str:
    """A rank's last reported activity; empty when it never reported any."""
    pulse = alive.pulses[rank] if alive.pulses else None
    if pulse is None or "runs" not in pulse.doing:  # a server, or a program that never beat
        return ""
    doing = pulse.doing
    what = f"in a run of {doing['fetch']} for {doing['seconds']} s" if doing.get("fetch") else "in no run"
    return f"{doing.get('runs', 0)} runs made, {what}"
