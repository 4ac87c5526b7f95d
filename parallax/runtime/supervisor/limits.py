"""Timeouts of each kind of silence before it ends a job, and the intervals of heartbeats.

A process that only computes for long is never silent: its heartbeat continues, or its processor time grows.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

WORD = signal.SIGURG
"""The launcher's keepalive signal to supervisors, which mpirun forwards; by default a process ignores it."""

PREEMPTION = signal.SIGWINCH
"""The signal that the job is preempted, and must save and end; mpirun forwards it, and other processes ignore it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Timeouts in seconds, each measured on the clock of the observer, and only while the observer itself is running.

    Attributes:
        beat_s: between two pulses of a supervisor, and two heartbeats of a worker.
        stopped_s: a process may be stopped by a signal (state T). Only another signal can continue it.
        frozen_s: a worker may send no heartbeat and use no processor, from its start on, without being stopped.
        silent_s: nothing may arrive from a supervisor: frames through mpirun are late by seconds on a full link.
        begin_s: no supervisor may start, while mpirun reaches the hosts; ssh itself gives up after two minutes.
        start_s: a supervisor may start later than the first one. mpirun starts all of them with one message.
        word_s: between two keepalive signals of the launcher to all supervisors.
        unheard_s: a supervisor may receive no keepalive signal; long enough for Ctrl-Z and `bg` at a terminal.
    """

    beat_s: float = 1.0
    stopped_s: float = 10.0
    frozen_s: float = 60.0
    silent_s: float = 20.0
    begin_s: float = 300.0
    start_s: float = 120.0
    word_s: float = 2.0
    unheard_s: float = 60.0

    @property
    def late_s(self) -> float:
        """The age at which a supervisor's pulse is late: a silent rank may then be the cause of what others report."""
        return 3 * self.beat_s


LIMITS = Limits()
"""The default limits of a job."""


def observed_s(now_s: float, before_s: float, beat_s: float) -> float:
    """Returns the seconds since an observer last looked, as far as they count.

    An observer that did not run itself (a stopped or overloaded machine, a pager that blocks its output) has not
    looked, so these seconds are no silence of the observed process.
    """
    return min(max(0.0, now_s - before_s), 2 * beat_s)
