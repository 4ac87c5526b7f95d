"""The program of every worker of the measuring job: all-reduces by each method and size, round by round.

    python -m ops.bench.sums.ranks ROUNDS SECONDS OUTPUT.json BYTES...

Worker 0 writes, for each method, size and round, the slowest worker's seconds and the busiest host's sent bytes.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from parallax.runtime.calibrate.sum_points import methods_of
from parallax.runtime.calibrate.sum_runs import IN_A_RUN, SumRuns
from parallax.runtime.worker.barrier import wait_for_all
from parallax.runtime.worker.ranks import ProcessGroup, current_process_group

_WARM_UP = 2
_MOST_RUNS = 200


def main() -> None:
    """Measures each method and size; worker 0 writes the results."""
    rounds, turn_s, output, *sizes = sys.argv[1:]
    members = current_process_group()
    members.start()
    hosts = members.parcel.hosts
    workers_by_host = [hosts.count(host) for host in dict.fromkeys(hosts)]
    methods = methods_of(workers_by_host)
    runs = SumRuns(members.teams, "parallax/sums", workers_by_host)
    times_by_method: dict[str, dict[str, list[list[float]]]] = {method: {} for method in methods}
    for size in sizes:
        counts = {}
        for method in methods:
            run = runs.runner(method, int(size))
            for _ in range(_WARM_UP):
                run()
            once_s = _measure_runs(run, members, _WARM_UP)[0]
            counts[method] = max(2, min(_MOST_RUNS, math.ceil(float(turn_s) / once_s)))
            times_by_method[method][size] = []
        for _ in range(int(rounds)):
            for method in methods:
                times_by_method[method][size].append(
                    _measure_runs(runs.runner(method, int(size)), members, counts[method])
                )
    if members.rank == 0:
        Path(output).write_text(json.dumps(times_by_method), encoding="utf-8")


def _measure_runs(run: Callable[[], None], members: ProcessGroup, count: int) -> list[float]:
    """Returns the slowest worker's seconds of an all-reduce, and the busiest host's sent bytes; the same on all."""
    from mpi4py import MPI

    wait_for_all(members.workers)
    members.workers.Barrier()
    sent = _sent_bytes()
    began_s = time.perf_counter()
    for _ in range(count):
        run()
    seconds = (time.perf_counter() - began_s) / (count * IN_A_RUN)
    members.workers.Barrier()
    bytes_of_one = (_sent_bytes() - sent) / (count * IN_A_RUN)
    return [float(members.workers.allreduce(one, MPI.MAX)) for one in (seconds, bytes_of_one)]


def _sent_bytes() -> int:
    """Returns the bytes that this host has sent over its links."""
    lines = Path("/proc/net/dev").read_text(encoding="ascii").splitlines()[2:]
    links: Any = (line.replace(":", " ").split() for line in lines)
    return sum(int(words[9]) for words in links if words[0] != "lo")


if __name__ == "__main__":
    main()
