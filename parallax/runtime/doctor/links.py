"""Program that one process per host runs under mpirun: measures the hosts' links and proves that MPI starts there.

Rank 0 writes the rates as a sealed line: those of each host, and of every two hosts where there are 3 to MOST_PAIRED.
No TensorFlow is loaded.
"""

from __future__ import annotations

import faulthandler
import sys

from parallax.base.types import Comm
from parallax.runtime.calibrate.links import link_rates
from parallax.runtime.supervisor.preload import forget_preloaded
from parallax.runtime.supervisor.sealed_files import sealed_value

MOST_PAIRED = 16
_LIMIT_S = 60.0  # for operations that wait inside MPI


def main() -> None:
    """Measures the links; the launcher has started this on all hosts."""
    forget_preloaded()
    faulthandler.dump_traceback_later(_LIMIT_S, exit=True)
    from mpi4py import MPI

    rates = link_rates(MPI.COMM_WORLD)
    faulthandler.dump_traceback_later(_LIMIT_S, exit=True)
    pairs = _pair_rates(MPI.COMM_WORLD) if 3 <= MPI.COMM_WORLD.size <= MOST_PAIRED else []
    if MPI.COMM_WORLD.rank == 0:
        sys.stdout.write(sealed_value((rates, pairs)).decode("ascii"))


def _pair_rates(comm: Comm) -> list[list[float]]:
    """By two hosts the rate of the link between them, the slower direction.

    Every host is in one pair at a time, and pairs share links as the exchanges of a job do. Each direction is measured
    by both hosts, and the faster measurement counts: a busy host slows its own.
    """
    rounds = comm.size - 1 + comm.size % 2
    mine = [0.0] * comm.size
    for turn in range(rounds):  # the circle method: the last place stays, and the others move on by one
        peer = find_opponent(comm.rank, turn, rounds)
        pair = comm.Split(min(comm.rank, peer), comm.rank)
        if pair.size == 2:
            (out, into), (back_out, back_into) = link_rates(pair)
            mine[peer] = min(max(out, back_into), max(into, back_out))
        comm.Barrier()
    return list(comm.allgather(mine))


def find_opponent(place: int, turn: int, rounds: int) -> int:
    """The opponent of a place in a round of a round-robin tournament of `rounds` + 1 places."""
    if place == rounds:
        return turn * (rounds + 1) // 2 % rounds
    peer = (turn - place) % rounds
    return rounds if peer == place else peer


if __name__ == "__main__":
    main()
