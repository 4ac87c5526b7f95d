"""Decides whether a job waits for ranks that will not arrive.

A run with collectives ends only when every rank is in one with the same collectives. A rank that has been in one for
the stall timeout while another rank is elsewhere waits for ever, or for a rank that is far too late. If all ranks are
in the same run, nothing is wrong, however long it takes; liveness.py checks that all are alive. A rank that caught a
run's failure and went on is in a different run from ranks that are still in that one, though both have the same
collectives.

A run may be patient: it waits for ranks that are still busy, and waits in vain only for those that ended their loop the
stall timeout ago.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from parallax.report.text import name_ranks

_CAUSES = 3  # ops behind a fetch that a message lists


@dataclass(frozen=True, slots=True)
class Stall:
    """Ranks that wait in vain.

    Attributes:
        fetch: the fetch of the longest-waiting rank.
        for_all: the part of it that every rank must fetch, and that ranks waiting in another fetch do not fetch.
        waiting: the ranks in the same run, ascending.
        waited_s: how long the longest has waited.
        absent: the ranks that do not arrive, ascending, each with the reason: (rank, reason).
        timeout_s: the limit that was passed.
    """

    fetch: str
    waiting: tuple[int, ...]
    waited_s: float
    absent: tuple[tuple[int, str], ...]
    timeout_s: float
    for_all: tuple[str, ...] = ()

    def __str__(self) -> str:
        reasons = dict.fromkeys(reason for _, reason in self.absent)
        for_all = ", ".join(self.for_all)
        lines = [
            f"a run that every rank must take part in has waited {self.waited_s:.0f} s for ranks that have not joined "
            "it.",
            f"  fetch: {self.fetch}",
            *([f"  of these, every rank must fetch: {for_all}"] if for_all not in ("", self.fetch) else []),
            f"  waiting: {name_ranks(self.waiting)}",
            *(
                f"  missing: {name_ranks([rank for rank, cause in self.absent if cause == reason])}: {reason}"
                for reason in reasons
            ),
            f"Run the same fetches equally often on every rank, or raise the stall timeout ({self.timeout_s:g} s) if "
            "a rank is merely slow.",
        ]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class _InRun:
    fetch: str
    collectives: str
    patient: bool
    began_s: float
    for_all: Mapping[str, frozenset[str]] = field(default_factory=dict)
    failures: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Elsewhere:
    reason: str
    since_s: float = float("-inf")


_NOT_IN_RUN = _Elsewhere("is not in session.run")


@dataclass(frozen=True, slots=True)
class StallWatch:
    """Activities of all workers, as far as they have reported. Servers, whose ranks follow the workers', only wait.

    Attributes:
        timeout_s: how long a worker may wait in vain.
        states: of each worker.
    """

    timeout_s: float
    states: tuple[_InRun | _Elsewhere, ...]

    @classmethod
    def of(cls, num_workers: int, timeout_s: float) -> StallWatch:
        """The watch of a job without any report."""
        return cls(timeout_s, (_NOT_IN_RUN,) * num_workers)

    def observe(self, rank: int, message: Mapping[str, object], now_s: float) -> StallWatch:
        """Processes one message of a worker; messages of kinds that say nothing about runs are ignored."""
        if rank >= len(self.states):
            return self
        kind = message["kind"]
        if kind == "in_run":
            return self._with(rank, _in_run(message, now_s))
        if kind == "run_done":
            return self._with(rank, replace(_NOT_IN_RUN, since_s=now_s))
        if kind == "finished":
            return self._with(rank, _Elsewhere(f"ended its loop after {message['runs']} runs", now_s))
        return self

    def observe_exit(self, rank: int, status: int, now_s: float) -> StallWatch:
        """Records that a worker's process has ended."""
        if rank >= len(self.states):
            return self
        state = self.states[rank]
        if isinstance(state, _InRun) or state.reason == _NOT_IN_RUN.reason:
            return self._with(rank, _Elsewhere(f"has ended with exit status {status}", now_s))
        return self

    def verdict(self, now_s: float) -> Stall | None:
        """The stall at `now_s`, or None while there is none."""
        runs = [(state.began_s, rank, state) for rank, state in enumerate(self.states) if isinstance(state, _InRun)]
        for began_s, _, run in sorted(runs, key=lambda run: run[:2]):
            absent = tuple(
                (rank, reason) for rank, state in enumerate(self.states) if (reason := _why_absent(state, run))
            )
            if not absent:
                continue
            # When a long run ends on all ranks now, one rank reports first: it is away only since then.
            if now_s - max(began_s, min(self._away_s(rank) for rank, _ in absent)) >= self.timeout_s:
                away = [rank for rank, _ in absent]
                waiting = tuple(rank for rank in range(len(self.states)) if rank not in away)
                others = [state for rank in away if isinstance(state := self.states[rank], _InRun)]
                return Stall(
                    run.fetch, waiting, now_s - began_s, absent, self.timeout_s, _find_exclusive_fetches(run, others)
                )
        return None

    def _with(self, rank: int, state: _InRun | _Elsewhere) -> StallWatch:
        return replace(self, states=(*self.states[:rank], state, *self.states[rank + 1 :]))

    def _away_s(self, rank: int) -> float:
        """The time since which a rank has been in its current place."""
        state = self.states[rank]
        return state.since_s if isinstance(state, _Elsewhere) else state.began_s


def _why_absent(state: _InRun | _Elsewhere, run: _InRun) -> str:
    """Why a rank will not enter a run; empty if it is in it, or may still enter it as far as a patient run knows."""
    if isinstance(state, _Elsewhere):
        return "" if run.patient and state.reason == _NOT_IN_RUN.reason else state.reason
    if run.patient:
        return ""
    if state.collectives == run.collectives:
        return _why_apart(state, run)
    alone = _find_exclusive_fetches(state, [run])
    return f"waits in another fetch: {state.fetch}" + (f"; every rank must fetch {', '.join(alone)}" if alone else "")


def _in_run(message: Mapping[str, object], now_s: float) -> _InRun:
    """The run that a message reports. Long runs are reported repeatedly: the worker's own clock defines the start."""
    for_all: Any = message.get("for_all") or {}
    failures: Any = message.get("failures") or ()
    return _InRun(
        str(message["fetch"]),
        str(message["collectives"]),
        bool(message.get("patient")),
        now_s - float(str(message["seconds"])),
        {str(fetch): frozenset(map(str, found)) for fetch, found in for_all.items()},
        tuple(map(str, failures)),
    )


def _why_apart(state: _InRun, run: _InRun) -> str:
    """Why two ranks in equal runs do not match there; empty when they do.

    A run that failed on one rank alone has left the others in one of its collectives. Failures count until the next run
    that succeeds, because in that run the ranks have synchronized again.
    """
    lead = len(state.failures) - len(run.failures)
    if lead > 0:
        return f"is {_runs(lead)} ahead: it caught an error and continued ({state.failures[-1]})"
    if lead < 0:
        return f"is {_runs(-lead)} behind, in one that failed on the waiting ranks ({run.failures[-1]})"
    return ""


def _runs(number: int) -> str:
    return "a run" if number == 1 else f"{number} runs"


def _find_exclusive_fetches(run: _InRun, others: Sequence[_InRun]) -> tuple[str, ...]:
    """The fetches of a run that every rank must make and the others do not, each with the ops that exchange values."""
    elsewhere = {place for other in others for places in other.for_all.values() for place in places}
    left = {fetch: places - elsewhere for fetch, places in run.for_all.items()}
    texts, seen = [], set[str]()
    for fetch in sorted(left, key=lambda fetch: (-len(left[fetch]), fetch)):
        if not left[fetch] <= seen:
            ops = sorted({place.partition(" ")[2] for place in left[fetch]} - {""})
            texts.append(f"{fetch} (by {', '.join(ops)})" if 0 < len(ops) <= _CAUSES else fetch)
            seen |= left[fetch]
    return tuple(texts)
