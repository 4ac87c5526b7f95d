"""Times runs in which several ranks take part."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from parallax.base.types import Comm

_SAMPLE_S = 0.02  # a sample is at least so long
_MOST_RUNS = 50
_FIRST_RUNS = 2  # make connections and buffers


def seconds_of_run(run: Callable[[], None], team: Comm, is_first: bool) -> float:
    """Seconds of a run: the mean of some in a row, of the slowest member. What comes before them is not counted."""
    from mpi4py import MPI

    for _ in range(_FIRST_RUNS if is_first else 0):
        run()
    once_s = seconds_of_call(run)
    times = team.bcast(min(math.ceil(_SAMPLE_S / once_s), _MOST_RUNS), 0)
    team.Barrier()
    began_s = time.perf_counter()
    for _ in range(times):
        run()
    mine_s = (time.perf_counter() - began_s) / times
    return float(team.allreduce(mine_s, MPI.MAX))


def seconds_of_call(run: Callable[[], None]) -> float:
    """Seconds of one call here."""
    began_s = time.perf_counter()
    run()
    return time.perf_counter() - began_s
