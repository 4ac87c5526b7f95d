"""What processes and interfaces have used."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

from ops.bench.race.place import Place

_QUIET_S = 0.05
_SETTLE_LIMIT_S = 2.0
"""The links' queues hold 0.2 s."""
_SCHEDULED = 2
"""A process's clock, whose number comes from the process's, counts what the scheduler gave all its threads."""


def cpu_s(pids: Iterable[int]) -> float:
    """Processor seconds that these processes have used so far, in user code and in the kernel."""
    seconds = 0.0
    for pid in pids:
        with contextlib.suppress(OSError):
            seconds += time.clock_gettime(~pid << 3 | _SCHEDULED)
    return seconds


def switches(pids: Iterable[int]) -> int:
    """How often threads of these processes were taken off a core so far; of those that still run."""
    count = 0
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").glob("*/status"):
            with contextlib.suppress(OSError):
                text = thread.read_text()
                count += sum(int(line.split()[1]) for line in text.splitlines() if "ctxt_switches" in line)
    return count


def peak_bytes(pids: Iterable[int]) -> tuple[int, ...]:
    """The most memory that each process has held so far, largest first."""
    peaks = []
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    peaks.append(int(line.split()[1]) * 1024)
    return tuple(sorted(peaks, reverse=True))


def available_bytes() -> int:
    """What this machine can still give to processes."""
    return int(psutil.virtual_memory().available)


def settled_counters(place: Place) -> dict[str, tuple[int, int]]:
    """The interfaces' counters when nothing is on its way any more; all processes must have been stopped."""
    deadline_s = time.monotonic() + _SETTLE_LIMIT_S
    before = place.counters()
    while before:
        time.sleep(_QUIET_S)
        now = place.counters()
        if now == before or time.monotonic() > deadline_s:
            return now
        before = now
    return before
