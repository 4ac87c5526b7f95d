"""The memory of a job's processes while it runs, read from /proc."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ops.lab.hosts import Hosts

_EVERY_S = 0.5
_SIZE = re.compile(r"^(VmHWM|VmRSS):\s+(\d+) kB", re.MULTILINE)
_KINDS = (
    ("parallax.runtime.supervisor.agent", "supervisor"),  # first: its command line names the process that it starts
    ("parallax.runtime.worker.main", "worker"),
    ("parallax.runtime.worker.fork_server", "worker"),  # and the workers that it forks
    ("parallax.runtime.worker.server", "server"),
    ("parallax.entry.cli", "launcher"),
)


@dataclass(frozen=True, slots=True)
class ProcessPeak:
    """The peak memory of a process.

    Attributes:
        host: the host where it ran.
        kind: `supervisor`, `worker`, `server`, `launcher` or `other`.
        peak_bytes: peak RSS.
    """

    host: str
    kind: str
    peak_bytes: int


class MemoryWatch:
    """Samples the memory of all processes of a lab twice a second, inside a `with` block.

    RSS counts shared pages, such as TensorFlow's code, once per process.
    """

    def __init__(self, lab: Hosts) -> None:
        self._lab = lab
        self._found: dict[int, ProcessPeak] = {}
        self._most = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    @property
    def processes(self) -> tuple[ProcessPeak, ...]:
        """All processes that ran, by host, the largest first."""
        return tuple(sorted(self._found.values(), key=lambda held: (held.host, -held.peak_bytes)))

    @property
    def most_bytes(self) -> int:
        """The peak memory of all processes together."""
        return self._most

    def _watch(self) -> None:
        while not self._done.wait(_EVERY_S):
            total = 0
            for host in self._lab.hosts:
                for pid, command in self._lab.processes(host.name).items():
                    total += self._look(host.name, pid, command)
            self._most = max(self._most, total)

    def _look(self, host: str, pid: int, command: str) -> int:
        with contextlib.suppress(OSError):
            sizes = dict(_SIZE.findall(Path(f"/proc/{pid}/status").read_text()))
            if sizes:
                self._found[pid] = ProcessPeak(host, _kind(command), int(sizes["VmHWM"]) * 1024)
                return int(sizes["VmRSS"]) * 1024
        return 0


class Marks:
    """Times of certain lines of a job's output, with the links' byte counters at these times.

    Args:
        pattern: matches these lines; its first group is a number.
        clock: returns seconds.
        counters: returns bytes received and sent so far, by host.
    """

    def __init__(
        self, pattern: str, clock: Callable[[], float], counters: Callable[[], dict[str, tuple[int, int]]]
    ) -> None:
        self._pattern, self._clock, self._counters = re.compile(pattern), clock, counters
        self.seen: dict[int, tuple[float, dict[str, tuple[int, int]]]] = {}

    def read(self, line: str) -> None:
        """Records the time and the counters if the line matches."""
        if found := self._pattern.search(line):
            self.seen[int(found[1])] = (self._clock(), self._counters())

    def between(self, first: int, last: int) -> tuple[float, int, int]:
        """Returns seconds, and the most bytes that a host sent and received, per step between two lines.

        Raises:
            KeyError: one of the lines was not printed.
        """
        (began_s, before), (ended_s, after) = self.seen[first], self.seen[last]
        moved = [(after[h][1] - before[h][1], after[h][0] - before[h][0]) for h in before]
        steps = last - first
        return (ended_s - began_s) / steps, max(s for s, _ in moved) // steps, max(r for _, r in moved) // steps


def _kind(command: str) -> str:
    return next((kind for word, kind in _KINDS if word in command), "other")
