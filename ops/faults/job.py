"""The launcher of a trial without TensorFlow: `python -m ops.faults.job MARK local|RESOURCE_FILE`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ops.faults.random_trials import TINY
from parallax.cluster.machines import local_cluster
from parallax.cluster.resource_file import parse_resource_file
from parallax.runtime.launcher.job import Job
from parallax.runtime.launcher.launch import JobEnd, launch
from parallax.runtime.supervisor.limits import Limits

LIMITS = Limits(beat_s=0.5, stopped_s=2.0, silent_s=5.0, word_s=0.5, unheard_s=6.0)


def launch_within(limits: Limits, launch: Callable[..., JobEnd], job: Job, *streams: Any) -> JobEnd:
    """Launches a job with other silence limits; returns its end. `streams` are further arguments of `launch`."""
    return launch(replace(job, limits=limits), *streams)


def main() -> int:
    """Runs the job; returns its exit status."""
    mark, where = sys.argv[1:]
    cluster = local_cluster(sum(TINY[0].workers), "") if where == "local" else parse_resource_file(where)
    return launch(Job(("-m", "ops.faults.sleeper", mark), cluster, limits=LIMITS)).status


if __name__ == "__main__":
    sys.exit(main())
