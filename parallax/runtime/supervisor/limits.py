"""Timeouts of each kind of silence before it ends a job, and the intervals of heartbeats.

A process that only computes for long is never silent: its heartbeat continues, or its processor time grows.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

WORD = signal.SIGURG
"""The launcher's word to supervisors, which mpirun passes on; a process that has not asked for it does not notice."""

PREEMPTION = signal.SIGWINCH
"""That the job is preempted, and shall save and end; travels as the word does, and like it is nothing to others."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds, each reckoned on the clock of whoever watches, and only while that one looks itself.

    Attributes:
        beat_s: between two pulses of a supervisor, and two beats of a worker.
        stopped_s: a process may be stopped by a signal (state T). Nothing but another signal lets it go on.
        frozen_s: a worker may give no beat and use no processor, from its start on, without being stopped.
        silent_s: nothing may come from a supervisor: frames through mpirun are late by seconds on a full link.
        begin_s: no supervisor may start, while mpirun reaches the hosts; ssh itself gives up after two minutes.
        start_s: a supervisor may start later than the first one. mpirun starts all of them with one message.
        word_s: between two words of the launcher to all supervisors.
        unheard_s: a supervisor may hear no word of the launcher; long enough for Ctrl-Z and `bg` at a terminal.
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
        """From here on a supervisor's pulse is late: who says nothing now may be the cause of what others say."""
        return 3 * self.beat_s


LIMITS = Limits()
"""Those of a job."""


def looked_s(now_s: float, before_s: float, beat_s: float) -> float:
    """The seconds since a watcher last looked, as far as they count.

    A watcher that did not run itself (a stopped or overloaded machine, a pager that holds up its output) has not
    looked, and nobody was silent for it meanwhile.
    """
    return min(max(0.0, now_s - before_s), 2 * beat_s)
