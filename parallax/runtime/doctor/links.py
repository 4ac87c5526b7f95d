"""Program that one process per host runs under mpirun: measures the hosts' links and proves that MPI starts there.

Rank 0 writes the rates as a sealed line. No TensorFlow is loaded.
"""

from __future__ import annotations

import faulthandler
import sys

from parallax.runtime.calibrate.links import link_rates
from parallax.runtime.supervisor.preload import forget_preloaded
from parallax.runtime.supervisor.sealed_files import sealed_value

_LIMIT_S = 60.0  # for operations that wait inside MPI


def main() -> None:
    """Measures the links; the launcher has started this on all hosts."""
    forget_preloaded()
    faulthandler.dump_traceback_later(_LIMIT_S, exit=True)
    from mpi4py import MPI

    rates = link_rates(MPI.COMM_WORLD)
    if MPI.COMM_WORLD.rank == 0:
        sys.stdout.write(sealed_value(rates).decode("ascii"))


if __name__ == "__main__":
    main()
