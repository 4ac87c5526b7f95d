"""Injects faults into jobs: `python -m ops.faults --simulated N`, `--seed S`, `--planted`, `--real N`, `--fits N`.

`--real N --restart` uses jobs that restart after each fault.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from multiprocessing import Pool

from ops.faults.simulate_job import Broken, simulate, simulate_all
from parallax.settings.arguments import CommandParser

_PIECE = 2000  # seeds of one task of a process
_TOLD_PIECES = 25
_SHOWN = 20


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns 0 if no job failed."""
    parser = CommandParser(prog="python -m ops.faults", description=(__doc__ or "").partition(":")[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--simulated", type=int, metavar="N", help="run N simulated jobs, each with one injected fault")
    what.add_argument("--seed", type=int, metavar="S", help="run one simulated job and print its events")
    what.add_argument("--planted", action="store_true", help="plant each known defect, and check that the jobs find it")
    what.add_argument("--real", type=int, metavar="N", help="run N real jobs, each with one injected fault")
    what.add_argument("--fits", type=int, metavar="N", help="inject N faults into the workers of a script's fits")
    parser.add_argument("--restart", action="store_true", help="with --real: N faults, in jobs that restart after each")
    parser.add_argument("--first", type=int, default=0, metavar="S", help="the first seed (0)")
    help_processes = "number of simulating processes (all cores); with --restart, of jobs at a time (1)"
    parser.add_argument("--processes", type=int, metavar="P", help=help_processes)
    arguments = parser.parse_args(argv)
    if arguments.planted:
        from ops.faults.defects import find_all

        return find_all()
    if arguments.restart and arguments.real is None:
        parser.error("--restart requires --real N")
    for number in (signal.SIGHUP, signal.SIGINT):  # background commands ignore these, and so would jobs
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, lambda number, frame: None)
    if arguments.restart:
        from ops.faults import restart_trials

        return restart_trials.run_all(arguments.real, arguments.first, arguments.processes or 1)
    if arguments.fits is not None:
        from ops.faults import fits

        return fits.run_all(arguments.fits, arguments.first)
    if arguments.real is not None:
        from ops.faults.real import run_all

        return run_all(arguments.real, arguments.first)
    if arguments.seed is not None:
        return _show(arguments.seed)
    return _run_simulated(arguments.simulated, arguments.first, arguments.processes or os.cpu_count() or 1)


def _run_simulated(number: int, first: int, processes: int) -> int:
    began_s = time.monotonic()
    end = first + number
    pieces = [range(begin, min(begin + _PIECE, end)) for begin in range(first, end, _PIECE)]
    broken: list[Broken] = []
    with Pool(processes) as pool:
        for done, found in enumerate(pool.imap(simulate_all, pieces), 1):
            broken += found
            if done % _TOLD_PIECES == 0:
                print(f"{min(done * _PIECE, number):,} done, {len(broken)} violations", flush=True)
    for one in broken[:_SHOWN]:
        print(one)
    print(f"{number:,} simulated jobs in {time.monotonic() - began_s:.1f} s: {len(broken)} violations.")
    return 1 if broken else 0


def _show(seed: int) -> int:
    broken, world = simulate(seed, watching=True)
    print(f"host of each rank: {[rank.host for rank in world.ranks]}", *world.trace, sep="\n")
    print(f"{world.ended_s:7.3f} the launcher: {world.ending}")
    print(broken or "no violation")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
