"""Decides how a job ended: which rank failed first, how, and what its last words were.

Its words are shown once: ranks that ended with the same error are named beside it, others get a line.
When one rank fails the others fail after it, so the first to tell is the cause. Two things come before that. SIGKILL is
never a consequence, though others may tell of their broken connections before the killed rank's supervisor tells of its
death. A rank whose supervisor was killed cannot tell at all, but mpirun names it.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from parallax.report.text import name_ranks
from parallax.runtime.supervisor.frames import Control, Exit, Frame

_LAST_STATUS = 127
EXIT_UNKNOWN = 1  # the rank failed without a status of its own

_TRACEBACK = "Traceback (most recent call last):"
_SAID_LINES = 20
_OTHERS_LINES = 3  # errors that came after the first, and differ from it
_OTHERS_WIDTH = 200
# A worker that has told of its exception gets this long to end by itself, which gives its exit status.
_EXIT_WAIT_S = 5.0
_SETTLE_S = 0.3  # for a cause that is told after its consequence
_RULE = re.compile(r"-{60,}")
# What mpirun prints of any failed job. The ending says the same with the rank's own words.
_VERDICTS = ("Primary job  terminated", "mpirun detected that one or more", "mpirun noticed that process rank")
# A race of Open MPI with its own child, without consequence.
_NOISE = "plm:rsh: Warning: setpgid("
_LOST = re.compile(r"\s*Remote daemon: .* on node (\S+)")
_NOTICED = re.compile(r"process rank (\d+)\s.*exited on\s+signal\s+(\d+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Ending:
    """The job's exit status, and for the user what happened (empty when all is well)."""

    status: int
    message: str = ""


@dataclass(frozen=True, slots=True)
class _Failure:
    """What the first failing rank told: `error` its traceback or empty, `status` its exit or None while it lives."""

    rank: int
    error: str
    status: int | None
    since_s: float


@dataclass(frozen=True, slots=True)
class _Told:
    """What a rank that fails has told: `error` for the user, `what` without its place."""

    error: str
    what: str


class FailureDetector:
    """Follows a job's frames and mpirun's words."""

    def __init__(self, num_ranks: int, name_of: Callable[[int], str]) -> None:
        self._status_by_rank: dict[int, int] = {}
        self._num_ranks = num_ranks
        self._name_of = name_of
        self._failure: _Failure | None = None
        self._told_by_rank: dict[int, _Told] = {}
        self._noticed: tuple[int, int] | None = None  # (rank, signal) of a supervisor's death
        self._lost_host: str | None = None
        self._block: list[str] | None = None  # lines since mpirun's last rule of dashes
        self._held_back: list[str] = []

    def observe(self, frame: Frame, now_s: float) -> None:
        """Takes in one frame."""
        if isinstance(frame, Control) and frame.message.get("kind") == "failed":
            error = str(frame.message.get("error", ""))
            self._told_by_rank[frame.rank] = _Told(error, str(frame.message.get("what", error)))
            if self._failure is None:
                self._failure = _Failure(frame.rank, error, None, now_s)
        elif isinstance(frame, Exit):
            self._status_by_rank[frame.rank] = frame.status
            if not frame.told:
                self._failure = self._cause(frame, now_s)

    def hear(self, line: str) -> list[str]:
        """Takes in one line of mpirun's own words; returns the lines that the user shall see now."""
        if _NOISE in line:
            return []
        lost = _LOST.match(line)
        if lost and self._lost_host is None:
            self._lost_host = lost.group(1)
        if not _RULE.fullmatch(line):
            if self._block is None:
                return [line]
            self._block.append(line)
            return []
        block, self._block = self._block, [] if self._block is None else None
        if not block:
            return []
        text = "\n".join(block)
        if not any(words in text for words in _VERDICTS):
            return block
        self._held_back += block
        noticed = _NOTICED.search(text)
        if noticed and self._noticed is None:
            self._noticed = (int(noticed.group(1)), int(noticed.group(2)))
        return []

    def knows_failure(self) -> bool:
        """Whether a rank has failed, or said that it is about to."""
        return self._failure is not None

    def has_failed(self, now_s: float) -> bool:
        """Whether a rank failed and there is nothing to wait for any more."""
        failure = self._failure
        if failure is None:
            return False
        return now_s >= failure.since_s + (_EXIT_WAIT_S if failure.status is None else _SETTLE_S)

    def ending(self, mpirun_status: int, tail: Callable[[int], Sequence[str]]) -> Ending:
        """How the job ended, if nobody stopped it.

        Args:
            mpirun_status: mpirun's exit status, or minus the signal that killed it.
            tail: gives the last lines of a rank on stderr.
        """
        if self._noticed is not None and self._noticed[0] not in self._status_by_rank:
            rank, number = self._noticed
            name = self._name_of(rank)
            what = f"{name} is lost: its supervisor {_how(-number)}. The job was ended."
            return Ending(128 + number, self._with_others(_with_words(what, name, "", tail(rank)), rank))
        if self._failure is not None:
            return Ending(_exit_status(self._failure.status), self.words(tail))
        silent = [rank for rank in range(self._num_ranks) if rank not in self._status_by_rank]
        if mpirun_status == 0 and not silent:
            return Ending(0)
        if self._lost_host is not None:
            what = (
                f"host {self._lost_host} is lost: it is down, or mpirun's daemon there was killed. The job was ended."
            )
            return Ending(EXIT_UNKNOWN, what)
        what = f"mpirun {_how(mpirun_status) if mpirun_status else 'ended'}"
        what += f" before {self._names(silent)} had ended." if silent else ", though no rank failed."
        # mpirun's own statuses above 127 (a daemon that did not start: 255) are no signals.
        status = EXIT_UNKNOWN if mpirun_status > _LAST_STATUS else _exit_status(mpirun_status)
        return Ending(status, "\n".join([what, *self._held_back[-_SAID_LINES:]]))

    def words(self, tail: Callable[[int], Sequence[str]]) -> str:
        """What the user is told of the failure; empty when there is none."""
        if self._failure is None:
            return ""
        rank, error = self._failure.rank, self._failure.error
        name = self._name_of(rank)
        what = f"{name} {_how(self._failure.status)}. The job was ended."
        return self._with_others(_with_words(what, self._names([rank, *self._alike(rank)]), error, tail(rank)), rank)

    def _alike(self, rank: int) -> list[int]:
        """The other ranks that told of the same error as a rank, ascending."""
        own = self._told_by_rank.get(rank)
        alike = (other for other, told in self._told_by_rank.items() if own is not None and told.what == own.what)
        return sorted(other for other in alike if other != rank)

    def _with_others(self, text: str, rank: int) -> str:
        """A message with a line for each other error that ranks told of."""
        told = {rank, *self._alike(rank)}
        by_what: dict[str, list[int]] = {}
        for other in sorted(self._told_by_rank.keys() - told):
            by_what.setdefault(_first_line(self._told_by_rank[other].what), []).append(other)
        lines = [f"{self._names(ranks)} failed too: {what}" for what, ranks in by_what.items()]
        if len(lines) > _OTHERS_LINES:
            left = [other for ranks in list(by_what.values())[_OTHERS_LINES:] for other in ranks]
            lines[_OTHERS_LINES:] = [f"{self._names(sorted(left))} failed too, each in its own way."]
        return "\n".join([text, *lines])

    def _names(self, ranks: Sequence[int]) -> str:
        return self._name_of(ranks[0]) if len(ranks) == 1 else name_ranks(sorted(ranks))

    def _cause(self, ended: Exit, now_s: float) -> _Failure | None:
        """What counts as the first failure now that a rank has ended by itself."""
        first = self._failure
        if first is not None and first.rank == ended.rank and first.status is None:
            return replace(first, status=ended.status)
        was_killed = ended.status == -signal.SIGKILL and (first is None or first.status != -signal.SIGKILL)
        if was_killed or (first is None and ended.status != 0):
            return _Failure(ended.rank, "", ended.status, now_s)
        return first


def signal_name(number: int) -> str:
    """The name of a signal: `SIGKILL`."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _exit_status(status: int | None) -> int:
    if not status:  # it told of a failure, and then ended as if all were well or did not end
        return EXIT_UNKNOWN
    return status if status > 0 else 128 - status


def _how(status: int | None) -> str:
    if not status:
        return "failed"
    if status > 0:
        return f"failed with exit status {status}"
    reason = " (by someone, or by the kernel because memory ran out)" if status == -signal.SIGKILL else ""
    return f"was killed by {signal_name(-status)}{reason}"


def _first_line(what: str) -> str:
    """The first line that says something; TensorFlow's errors begin with a heading."""
    lines = [line.strip() for line in what.splitlines() if line.strip()]
    telling = [line for line in lines if not line.endswith("Graph execution error:")]
    line = (telling or lines or ["without a word"])[0]
    return line if len(line) <= _OTHERS_WIDTH else f"{line[: _OTHERS_WIDTH - 3]}..."


def _with_words(what: str, name: str, error: str, tail: Sequence[str]) -> str:
    if error:
        kind = "Traceback" if error.startswith(_TRACEBACK) else "Error"
        return f"{what}\n{kind} of {name}:\n{error.rstrip()}"
    lines = list(tail)
    if _TRACEBACK in lines:
        lines = lines[lines.index(_TRACEBACK) :]
    if not lines:
        return f"{what} It wrote nothing on stderr."
    return "\n".join([f"{what}\nLast lines of {name} on stderr:", *lines])
