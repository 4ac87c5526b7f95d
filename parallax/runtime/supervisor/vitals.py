"""What the kernel says of a process: whether it runs, waits or is stopped, and how much processor it has used."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

GONE = "X"
STOPPED = "T"  # by a signal


class Vitals(NamedTuple):
    """A process at one moment.

    Attributes:
        state: the letter of proc(5): R runs or could, S waits, D waits in the kernel, T stopped by a signal, t held by
            a debugger, Z dead; X when there is no such process.
        ticks: processor time of all its threads, in the kernel's ticks (10 ms).
    """

    state: str
    ticks: int = 0


def vitals_of(pid: int) -> Vitals:
    """The vitals of process `pid` on this machine."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return Vitals(GONE)
    return Vitals(words[0], int(words[11]) + int(words[12]))
