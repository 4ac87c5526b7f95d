"""`launch_job.py RESOURCE yes|no|bare PROGRAM ARGS...`: a job of one program, with servers, without, or with neither
servers nor TensorFlow.
"""

import json
import os
import secrets
import sys
from pathlib import Path

from parallax.cluster.resource_file import parse_resource_file
from parallax.runtime.launcher.job import Job, layout_of, worker_defaults
from parallax.runtime.launcher.launch import launch
from parallax.runtime.supervisor.limits import Limits
from parallax.runtime.worker.job_message import JobMessage
from parallax.settings.environment import with_defaults

MAIN = "parallax.runtime.worker.main"

resource, with_servers, *program = sys.argv[1:]
cluster = parse_resource_file(resource)
servers = layout_of(cluster).servers if with_servers == "yes" else ()
hosts = tuple(number for number, host in enumerate(cluster.hosts) for _ in range(host.num_workers))
addresses = tuple(host.address for host in cluster.hosts)
plan = secrets.token_hex(2_000_000)  # 2 MB when compressed
parcel = JobMessage(plan, b"graph", 7, hosts, servers, addresses, cluster.ports)
variables = with_defaults(worker_defaults(cluster, servers))
limits = Limits(**json.loads(os.environ.get("LIMITS", "{}")))
worker = (str(Path(__file__).with_name("bare_worker.py")),) if with_servers == "bare" else ("-m", MAIN)
words = (*worker, *program)
sys.exit(launch(Job(words, cluster, servers, variables, 60.0, parcel.pieces(), limits=limits)).status)
