"""Starts a job whose workers run a module: `python -m ops.bench.jobs.launch_module MODULE WHERE SERVERS WORDS...`.

WHERE is a resource file, or the number of workers on this machine. SERVERS is `servers` (one on each host) or `none`.
"""

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


def main() -> None:
    """Launches the job, and exits with its status."""
    module, where, servers, *words = sys.argv[1:]
    here = local_cluster(int(where) if where.isdecimal() else None, "")
    cluster = here if where.isdecimal() else parse_resource_file(where, here.hosts[0])
    serving = tuple(range(len(cluster.hosts))) if servers == "servers" else ()
    hosts = tuple(number for number, host in enumerate(cluster.hosts) for _ in range(host.num_workers))
    variables = (*with_defaults(worker_defaults(cluster, serving)), ("PYTHONPATH", python_path_with(Path(ROOT))))
    parcel = JobMessage("", b"", 0, hosts, serving, tuple(host.address for host in cluster.hosts), cluster.ports)
    program = ("-m", "parallax.runtime.worker.main", "-m", module, *words)
    sys.exit(launch(Job(program, cluster, serving, variables, input=parcel.pieces())).status)


if __name__ == "__main__":
    main()
