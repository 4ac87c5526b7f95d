"""Resource usage of processes and network interfaces."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

from ops.bench.race.place import Place

_QUIET_S = 0.05
_SETTLE_LIMIT_S = 2.0
"""Limit for the links' queues to drain, which hold 0.2 s."""
_SCHEDULED = 2
"""The type of a process's CPU-time clock, whose id derives from the pid: it sums the scheduled time of all threads."""


def cpu_s(pids: Iterable[int]) -> float:
    """Returns the processor seconds that these processes have used so far, in user code and in the kernel."""
    seconds = 0.0
    for pid in pids:
        with contextlib.suppress(OSError):
            seconds += time.clock_gettime(~pid << 3 | _SCHEDULED)
    return seconds


def switches(pids: Iterable[int]) -> int:
    """Returns the number of context switches of these processes' threads so far, for threads that still run."""
    count = 0
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").glob("*/status"):
            with contextlib.suppress(OSError):
                text = thread.read_text()
                count += sum(int(line.split()[1]) for line in text.splitlines() if "ctxt_switches" in line)
    return count


def peak_bytes(pids: Iterable[int]) -> tuple[int, ...]:
    """Returns the peak RSS of each process so far, largest first."""
    peaks = []
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    peaks.append(int(line.split()[1]) * 1024)
    return tuple(sorted(peaks, reverse=True))


def available_bytes() -> int:
    """Returns the memory of this machine that is available to processes."""
    return int(psutil.virtual_memory().available)


def settled_counters(place: Place) -> dict[str, tuple[int, int]]:
    """Returns the interfaces' counters once no data are in flight; all processes must have been stopped."""
    deadline_s = time.monotonic() + _SETTLE_LIMIT_S
    before = place.counters()
    while before:
        time.sleep(_QUIET_S)
        now = place.counters()
        if now == before or time.monotonic() > deadline_s:
            return now
        before = now
    return before
