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
    ("parallax.runtime.supervisor.agent", "supervisor"),  # first: it names what it starts
    ("parallax.runtime.worker.main", "worker"),
    ("parallax.runtime.worker.fork_server", "worker"),  # and those that it forks
    ("parallax.runtime.worker.server", "server"),
    ("parallax.entry.cli", "launcher"),
)


@dataclass(frozen=True, slots=True)
class ProcessPeak:
    """The most that a process has held.

    Attributes:
        host: where it ran.
        kind: `supervisor`, `worker`, `server`, `launcher` or `other`.
        peak_bytes: of its resident memory.
    """

    host: str
    kind: str
    peak_bytes: int


class MemoryWatch:
    """Looks at all processes of a lab twice a second, inside a `with` block.

    Resident memory counts pages that processes share, such as TensorFlow's code, once for each of them.
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
        """All that ran, by host, the largest first."""
        return tuple(sorted(self._found.values(), key=lambda held: (held.host, -held.peak_bytes)))

    @property
    def most_bytes(self) -> int:
        """The most that all held at one time."""
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
    """When lines of a job's output came, and what the links had carried by then.

    Args:
        pattern: of the lines; its first group is a number.
        clock: seconds.
        counters: bytes received and sent so far, by host.
    """

    def __init__(
        self, pattern: str, clock: Callable[[], float], counters: Callable[[], dict[str, tuple[int, int]]]
    ) -> None:
        self._pattern, self._clock, self._counters = re.compile(pattern), clock, counters
        self.seen: dict[int, tuple[float, dict[str, tuple[int, int]]]] = {}

    def read(self, line: str) -> None:
        """Notes a line if it is one of them."""
        if found := self._pattern.search(line):
            self.seen[int(found[1])] = (self._clock(), self._counters())

    def between(self, first: int, last: int) -> tuple[float, int, int]:
        """Seconds, and the most bytes that a host sent and received, from one line to another, over their distance.

        Raises:
            KeyError: one of them did not come.
        """
        (began_s, before), (ended_s, after) = self.seen[first], self.seen[last]
        moved = [(after[h][1] - before[h][1], after[h][0] - before[h][0]) for h in before]
        steps = last - first
        return (ended_s - began_s) / steps, max(s for s, _ in moved) // steps, max(r for _, r in moved) // steps


def _kind(command: str) -> str:
    return next((kind for word, kind in _KINDS if word in command), "other")
