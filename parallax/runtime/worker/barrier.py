"""A barrier of workers that leaves their cores to others."""

from __future__ import annotations

import time

from parallax.types import Comm

_FIRST_PAUSE_S, _LAST_PAUSE_S = 5e-5, 2e-3  # short beside a small variable, and beside a chunk


def barrier(comm: Comm) -> None:
    """Waits for all workers without keeping a core busy, as MPI's own waiting does: worker 0 may write for long."""
    arrived, pause_s = comm.Ibarrier(), _FIRST_PAUSE_S
    while not arrived.Test():
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LAST_PAUSE_S)
