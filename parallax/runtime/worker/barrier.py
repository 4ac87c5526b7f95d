"""A barrier of workers that leaves their cores to other processes while they wait."""

from __future__ import annotations

import time

from parallax.base.types import Comm, MpiRequest

_RARE_PAUSE_S = 0.02
_FIRST_PAUSE_S, _LAST_PAUSE_S = 5e-5, 2e-3  # short compared with a small variable's write, and with a chunk's


def barrier(comm: Comm) -> None:
    """Waits for all workers without keeping a core busy, as MPI's own waiting does: worker 0 may write for long."""
    wait_for(comm.Ibarrier())


def wait_for_all(world: Comm) -> None:
    """Waits until every rank of the job has called it, for however long, polling rarely."""
    last = world.Ibarrier()
    while not last.Test():
        time.sleep(_RARE_PAUSE_S)


def wait_for(request: MpiRequest) -> None:
    """Waits for an MPI request in the same way as `barrier`.

    Args:
        request: an mpi4py.MPI.Request.
    """
    pause_s = _FIRST_PAUSE_S
    while not request.Test():
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LAST_PAUSE_S)
