"""Decides how a job ended: the rank that failed first, its kind of failure, and its last output.

The last output is shown once: ranks that ended with the same error are listed with it, others get a line. When one rank
fails, the others fail after it, so the first failure reported is the cause. Two things take precedence. SIGKILL is
never a consequence, though other ranks may report broken connections before the killed rank's supervisor reports its
death. A rank whose supervisor was killed cannot report at all, but mpirun names it. A supervisor that received a signal
reports it; SIGTERM is mpirun's way to end ranks, and is a failure only of the rank that mpirun itself names as the
first to exit.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from parallax.report.text import first_line, name_ranks
from parallax.runtime.launcher.failures.cause import BROKEN, HOST_LOST, KILLED, LOST, RAISED, EndCause
from parallax.runtime.supervisor.frames import Control, Exit, Frame, Start

_LAST_STATUS = 127
EXIT_UNKNOWN = 1  # the rank failed without its own status

_TRACEBACK = "Traceback (most recent call last):"
# mpirun's status when it ends its ranks and itself silently at a SIGTERM, SIGINT or SIGHUP, of which it receives only
# SIGTERM (launcher/launch.py). It explains every other end with this status.
_SIGTERM_STATUS = 1
_SAID_LINES = 20
_OTHERS_LINES = 3  # errors that came after the first, and differ from it
_OTHERS_WIDTH = 200
# A worker that has reported its exception has this long to exit by itself, which yields its exit status.
_EXIT_WAIT_S = 5.0
_SETTLE_S = 0.3  # for a cause that is reported after its consequence
_REASONS: dict[int, str] = {
    signal.SIGKILL: " (by someone, or by the kernel because memory ran out)",
    signal.SIGBUS: " (a disk or the shared memory /dev/shm is full, or a file was truncated while it was being read)",
}
_RULE = re.compile(r"-{60,}")
# Messages of mpirun about any failed job. The ending says the same with the rank's own error.
_VERDICTS = ("Primary job  terminated", "mpirun detected that one or more", "mpirun noticed that process rank")
# A race of Open MPI with its own child, and the keepalive signal that mpirun forwards: without consequence.
_NOISE = ("plm:rsh: Warning: setpgid(", "mpirun: Forwarding signal")
_LOST = re.compile(r"\s*Remote daemon: .* on node (\S+)")
_FIRST_OUT = re.compile(r"Process name: \[\[\d+,\d+\],(\d+)\]")
_NOTICED = re.compile(r"process rank (\d+)\s.*exited on\s+signal\s+(\d+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a job: its exit status, the message for the user (empty on success), and the kind of its cause."""

    status: int
    message: str = ""
    cause: EndCause = EndCause()


@dataclass(frozen=True, slots=True)
class _Failure:
    """The report of the first failing rank: `error` its traceback or empty, `status` its exit status or None if alive.

    `by` is the signal that its supervisor received, if that ended it.
    """

    rank: int
    error: str
    status: int | None
    since_s: float
    by: int = 0


@dataclass(frozen=True, slots=True)
class _FailureReport:
    """The report of a failing rank: `error` for the user, `what` without its place."""

    error: str
    what: str


@dataclass(frozen=True, slots=True)
class FailureDetector:
    """Failures of a job, as known from its frames and mpirun's output.

    Attributes:
        names: of each rank, for messages.
        statuses: exit status by rank, of those that have ended.
        failure: the failure that counts as the first so far.
        reports: reports of failing ranks, by rank.
        noticed: (rank, signal) of a supervisor's death, as reported by mpirun.
        first_out: the rank that ended first with a status other than 0, as reported by mpirun.
        lost_host: a lost host, as reported by mpirun.
        block: lines since mpirun's last rule of dashes.
        suppressed: mpirun's output about the failure.
        has_other_output: mpirun has written something else.
        has_started: a rank has started.
    """

    names: tuple[str, ...]
    statuses: Mapping[int, int] = field(default_factory=dict)
    failure: _Failure | None = None
    reports: Mapping[int, _FailureReport] = field(default_factory=dict)
    noticed: tuple[int, int] | None = None
    first_out: int | None = None
    lost_host: str | None = None
    block: tuple[str, ...] | None = None
    suppressed: tuple[str, ...] = ()
    has_other_output: bool = False
    has_started: bool = False

    def observe(self, frame: Frame, now_s: float) -> FailureDetector:
        """Processes one frame."""
        if isinstance(frame, Control) and frame.message.get("kind") == "failed":
            error = str(frame.message.get("error", ""))
            reports = {**self.reports, frame.rank: _FailureReport(error, str(frame.message.get("what", error)))}
            failure = self.failure or _Failure(frame.rank, error, None, now_s)
            return replace(self, reports=reports, failure=failure)
        if isinstance(frame, Exit):
            after = replace(self, statuses={**self.statuses, frame.rank: frame.status})
            if not frame.told or frame.by:
                return replace(after, failure=self._cause(frame, now_s))
            return after
        if isinstance(frame, Start):
            return replace(self, has_started=True)
        return self

    def process_line(self, line: str) -> tuple[FailureDetector, list[str]]:
        """Processes one line of mpirun's own output; also returns the lines to show to the user now."""
        if any(noise in line for noise in _NOISE):
            return self, []
        lost = _LOST.match(line)
        after = replace(self, lost_host=lost.group(1)) if lost and self.lost_host is None else self
        if not _RULE.fullmatch(line):
            if self.block is None:
                return replace(after, has_other_output=self.has_other_output or bool(line.strip())), [line]
            return replace(after, block=(*self.block, line)), []
        block, after = self.block, replace(after, block=() if self.block is None else None)
        if not block:
            return after, []
        text = "\n".join(block)
        if not any(words in text for words in _VERDICTS):
            return replace(after, has_other_output=True), list(block)
        after = replace(after, suppressed=(*self.suppressed, *block))
        noticed = _NOTICED.search(text)
        if noticed and self.noticed is None:
            after = replace(after, noticed=(int(noticed.group(1)), int(noticed.group(2))))
        first = _FIRST_OUT.search(text)
        if first and self.first_out is None:
            after = replace(after, first_out=int(first.group(1)))
        return after, []

    def knows_failure(self) -> bool:
        """Whether a rank has failed, or reported that it is about to."""
        return self.failure is not None

    def has_failed(self, now_s: float) -> bool:
        """Whether a rank failed and there is nothing left to wait for."""
        failure = self.failure
        if failure is None:
            return False
        return now_s >= failure.since_s + (_EXIT_WAIT_S if failure.status is None else _SETTLE_S)

    def conclude(self, mpirun_status: int, tail: Callable[[int], Sequence[str]]) -> Ending:
        """Returns how the job ended, if it was not stopped.

        Args:
            mpirun_status: mpirun's exit status, or minus the signal that killed it.
            tail: returns the last lines of a rank on stderr.
        """
        if self.noticed is not None and self.noticed[0] not in self.statuses:
            rank, number = self.noticed
            name = self.names[rank]
            what = f"{name} is lost: its supervisor {_describe_status(-number)}. The job was ended."
            message = self._with_others(_with_words(what, name, "", tail(rank)), rank)
            return Ending(128 + number, message, EndCause(LOST, (rank,)))
        if self.failure is not None:
            return Ending(_exit_status(self.failure.status), self.describe(tail), self._cause_of(self.failure))
        silent = [rank for rank in range(len(self.names)) if rank not in self.statuses]
        if mpirun_status == 0 and not silent:
            return Ending(0)
        if self.lost_host is not None:
            what = f"host {self.lost_host} is lost: it is down, or mpirun's daemon there was killed. The job was ended."
            return Ending(EXIT_UNKNOWN, what, EndCause(HOST_LOST, host=self.lost_host))
        if self.first_out is not None and self.first_out in self.statuses:
            name = self.names[self.first_out]
            what = f"{name} is lost: its supervisor was ended by SIGTERM. The job was ended."
            return Ending(128 + signal.SIGTERM, what, EndCause(LOST, (self.first_out,)))
        if mpirun_status == _SIGTERM_STATUS and self.has_started and not self.has_other_output and not self.suppressed:
            return Ending(128 + signal.SIGTERM, mpirun_signal_text(signal.SIGTERM), EndCause(BROKEN))
        what = f"mpirun {_describe_status(mpirun_status) if mpirun_status else 'ended'}"
        what += f" before {self._names(silent)} had ended." if silent else ", though no rank failed."
        # mpirun's own statuses above 127 (a daemon that did not start: 255) are no signals.
        status = EXIT_UNKNOWN if mpirun_status > _LAST_STATUS else _exit_status(mpirun_status)
        return Ending(status, "\n".join([what, *self.suppressed[-_SAID_LINES:]]), EndCause(BROKEN))

    def describe(self, tail: Callable[[int], Sequence[str]]) -> str:
        """The user message about the failure; empty when there is none."""
        if self.failure is None:
            return ""
        rank, error = self.failure.rank, self.failure.error
        name = self.names[rank]
        what = f"{name} {_describe_status(self.failure.status)}. The job was ended."
        if self.failure.by:
            what = f"{name} is lost: its supervisor was ended by {signal_name(self.failure.by)}. The job was ended."
        return self._with_others(
            _with_words(what, self._names([rank, *self._find_same_error(rank)]), error, tail(rank)), rank
        )

    def _cause_of(self, failure: _Failure) -> EndCause:
        """Classifies a rank's failure."""
        if failure.by:
            return EndCause(LOST, (failure.rank,))
        if failure.status is not None and failure.status < 0 and not failure.error:
            return EndCause(KILLED, (failure.rank,))
        report = self.reports.get(failure.rank)
        what = f"exit status {_exit_status(failure.status)}" if report is None else report.what
        return EndCause(RAISED, (failure.rank,), what)

    def _find_same_error(self, rank: int) -> list[int]:
        """The other ranks that reported the same error as a rank, ascending."""
        own_report = self.reports.get(rank)
        ranks = (
            other for other, report in self.reports.items() if own_report is not None and report.what == own_report.what
        )
        return sorted(other for other in ranks if other != rank)

    def _with_others(self, text: str, rank: int) -> str:
        """A message with a line for each other error that ranks reported."""
        reporting = {rank, *self._find_same_error(rank)}
        by_what: dict[str, list[int]] = {}
        for other in sorted(self.reports.keys() - reporting):
            what = first_line(self.reports[other].what, _OTHERS_WIDTH) or "without a message"
            by_what.setdefault(what, []).append(other)
        lines = [f"{self._names(ranks)} failed too: {what}" for what, ranks in by_what.items()]
        if len(lines) > _OTHERS_LINES:
            left = [other for ranks in list(by_what.values())[_OTHERS_LINES:] for other in ranks]
            lines[_OTHERS_LINES:] = [f"{self._names(sorted(left))} failed too, each with a different error."]
        return "\n".join([text, *lines])

    def _names(self, ranks: Sequence[int]) -> str:
        return self.names[ranks[0]] if len(ranks) == 1 else name_ranks(sorted(ranks))

    def _cause(self, ended: Exit, now_s: float) -> _Failure | None:
        """The failure that counts as the first now that a rank has ended by itself."""
        first = self.failure
        if ended.by:
            return first or _Failure(ended.rank, "", -ended.by, now_s, ended.by)
        if first is not None and first.rank == ended.rank and first.status is None:
            return replace(first, status=ended.status)
        was_killed = ended.status == -signal.SIGKILL and (first is None or first.status != -signal.SIGKILL)
        if was_killed or (first is None and ended.status != 0):
            return _Failure(ended.rank, "", ended.status, now_s)
        return first


def mpirun_signal_text(number: int) -> str:
    """The user message about a signal that another process has sent to mpirun."""
    return f"mpirun got {signal_name(number)} from another process. The job was ended."


def signal_name(number: int) -> str:
    """The name of a signal: `SIGKILL`."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _exit_status(status: int | None) -> int:
    if not status:  # it reported a failure, and then exited with 0 or did not end
        return EXIT_UNKNOWN
    return status if status > 0 else 128 - status


def _describe_status(status: int | None) -> str:
    if not status:
        return "failed"
    if status > 0:
        return f"failed with exit status {status}"
    return f"was killed by {signal_name(-status)}{_REASONS.get(-status, '')}"


def _with_words(what: str, name: str, error: str, tail: Sequence[str]) -> str:
    if error:
        kind = "Traceback" if error.startswith(_TRACEBACK) else "Error"
        return f"{what}\n{kind} of {name}:\n{error.rstrip()}"
    lines = list(tail)
    if _TRACEBACK in lines:
        lines = lines[lines.index(_TRACEBACK) :]
    if not lines:
        return f"{what} It wrote nothing to stderr."
    return "\n".join([f"{what}\nLast lines of {name} on stderr:", *lines])
