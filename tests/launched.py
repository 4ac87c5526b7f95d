"""`python -m tests.launched WORKERS PROGRAM ARGS...`: a job on this machine, whose ranks sleep while they wait."""

import sys

from parallax.cluster.machines import local_cluster
from parallax.runtime.launcher.job import Job, worker_defaults
from parallax.runtime.launcher.launch import launch

WAITS = "PARALLAX_IDLE_US"

if __name__ == "__main__":
    cluster = local_cluster(int(sys.argv[1]), "")
    waits = (WAITS, worker_defaults(cluster, ())[WAITS])
    sys.exit(launch(Job(tuple(sys.argv[2:]), cluster, (), (waits,))).status)
