"""The cost of liveness in an idle job: a figure that other jobs on the machine hardly change.

`python -m ops.bench.safety.waiting on|off WORKERS` is the launcher of such a job.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable
from pathlib import Path

from ops.bench.safety.off import NEVER
from parallax.cluster.machines import local_cluster
from parallax.runtime.launcher.job import Job
from parallax.runtime.launcher.launch import launch
from parallax.runtime.supervisor.limits import LIMITS
from parallax.runtime.supervisor.processes import end_processes, processes_with

_MARK = "PARALLAX_WAITING"
_START_S = 12.0
_PROGRAM = """
import sys, time
from parallax.runtime.worker import heartbeat
if sys.argv[1] == "off":
    from ops.bench.safety.off import NEVER
    heartbeat.LIMITS = NEVER
with heartbeat.watching() as watch, watch.run("train", "d"):
    time.sleep(1e6)
"""


def core_s_per_s(kind: str, workers: int, seconds: float) -> float:
    """Returns the processor seconds per second of all processes of an idle job, launcher and mpirun included.

    Args:
        kind: `on`, or `off` for a job without liveness.
        workers: number of workers.
        seconds: length of the measurement.
    """
    mark = {_MARK: uuid.uuid4().hex}
    words = [sys.executable, "-m", "ops.bench.safety.waiting", kind, str(workers)]
    job = subprocess.Popen(words, env={**os.environ, **mark}, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        time.sleep(_START_S)
        pids = processes_with(mark)
        before, began_s = _core_s(pids), time.monotonic()
        time.sleep(seconds)
        return (_core_s(pids) - before) / (time.monotonic() - began_s)
    finally:
        job.terminate()
        job.wait()
        end_processes(mark, 1.0)


def _core_s(pids: Iterable[int]) -> float:
    """Returns the processor seconds of all threads so far, by the scheduler's count; the usual one has 10 ms steps."""
    files = (file for pid in pids for file in Path(f"/proc/{pid}/task").glob("*/schedstat"))
    return sum(int(file.read_text().split()[0]) for file in files) / 1e9


def main() -> int:
    """Runs the job until it is terminated."""
    kind, workers = sys.argv[1:]
    limits = LIMITS if kind == "on" else NEVER
    return launch(Job(("-c", _PROGRAM, kind), local_cluster(int(workers), ""), limits=limits)).status


if __name__ == "__main__":
    sys.exit(main())
