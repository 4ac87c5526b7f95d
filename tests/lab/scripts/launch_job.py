"""`launch_job.py RESOURCE yes|no PROGRAM ARGS...`: a job of one program, with servers or without."""

import json
import os
import secrets
import sys

from parallax.cluster.resource_file import parse_resource_file
from parallax.runtime.launcher.job import Job, layout_of
from parallax.runtime.launcher.launch import launch
from parallax.runtime.supervisor.limits import Limits
from parallax.runtime.worker.job_message import JobMessage

resource, with_servers, *program = sys.argv[1:]
cluster = parse_resource_file(resource)
servers = layout_of(cluster).servers if with_servers == "yes" else ()
hosts = tuple(number for number, host in enumerate(cluster.hosts) for _ in range(host.num_workers))
addresses = tuple(host.address for host in cluster.hosts)
plan = secrets.token_hex(2_000_000)  # 2 MB when compressed
parcel = JobMessage(plan, b"graph", 7, hosts, servers, addresses, cluster.ports)
variables = (("TF_CPP_MIN_LOG_LEVEL", "2"),)
limits = Limits(**json.loads(os.environ.get("LIMITS", "{}")))
words = ("-m", "parallax.runtime.worker.main", *program)
sys.exit(launch(Job(words, cluster, servers, variables, 60.0, parcel.pieces(), limits=limits)).status)
