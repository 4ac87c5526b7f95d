"""Starts the measuring job from the first host: `python -m ops.bench.regret.launch RESOURCE ROUNDS SECONDS CASE...`."""

from __future__ import annotations

import sys
from pathlib import Path

from ops.bench.race.place import ROOT
from parallax.cluster.machines import local_cluster
from parallax.cluster.resource_file import parse_resource_file
from parallax.runtime.launcher.job import Job, worker_defaults
from parallax.runtime.launcher.launch import launch
from parallax.runtime.worker.job_message import JobMessage
from parallax.settings.environment import python_path_with, with_defaults

_RANKS = "ops.bench.regret.ranks"


def main() -> None:
    """Launches a worker and a server on each host; leaves with the job's exit status."""
    resource, *words = sys.argv[1:]
    cluster = parse_resource_file(resource, local_cluster(None, "").hosts[0])
    numbers = tuple(range(len(cluster.hosts)))
    variables = (*with_defaults(worker_defaults(cluster, numbers)), ("PYTHONPATH", python_path_with(Path(ROOT))))
    parcel = JobMessage("", b"", 0, numbers, numbers, tuple(host.address for host in cluster.hosts), cluster.ports)
    program = ("-m", "parallax.runtime.worker.main", "-m", _RANKS, *words)
    sys.exit(launch(Job(program, cluster, numbers, variables, input=parcel.pieces())).status)


if __name__ == "__main__":
    main()
