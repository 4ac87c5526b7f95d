"""`python -m tests.launched WORKERS PROGRAM ARGS...`: a job on this machine, whose ranks sleep while they wait.

Where the environment names the folder of servers of workers (tests/warm_worker.py), a program that is a module of tests
is forked.
"""

import os
import sys

from parallax.cluster.machines import local_cluster
from parallax.runtime.launcher import mpirun
from parallax.runtime.launcher.job import Job, worker_defaults
from parallax.runtime.launcher.launch import launch
from tests.warm_worker import FOLDER, SUPERVISOR

WAITS = "PARALLAX_IDLE_US"

if __name__ == "__main__":
    if FOLDER in os.environ:
        mpirun._AGENT = SUPERVISOR  # type: ignore[assignment]
    cluster = local_cluster(int(sys.argv[1]), "")
    waits = (WAITS, worker_defaults(cluster, ())[WAITS])
    sys.exit(launch(Job(tuple(sys.argv[2:]), cluster, (), (waits,))).status)
