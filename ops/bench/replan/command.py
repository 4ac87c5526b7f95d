"""The command `python -m ops.bench replan`: seconds of plan changes in a running job, on emulated hosts.

One job changes from `alltoall` to `allgather`, to `ps`, and back to `alltoall`. A second job keeps its plan. Four more
jobs, one per plan, each continue from the checkpoint of the one before, in memory that all hosts share. The losses of
all steps, and a final sum over rows, are compared.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ops.bench.on_lab import output_of
from ops.lab.lab import Lab, why_not

ROUTES = ("alltoall", "allgather", "ps", "alltoall")
_SCRIPT = Path(__file__).with_name("script.py")
_WIDTH = 64
_IN_MEMORY = Path("/dev/shm")  # shared by the hosts, which are one machine; no disk is faster
_TOLERANCE = 1e-5  # float32 sums in another order


def add_command(commands: Any) -> None:
    """Adds `replan` to the benchmark's command line."""
    parser = commands.add_parser("replan", help="seconds of plan changes in a running job, on emulated hosts")
    parser.add_argument("--gigabytes", type=float, default=1.0, metavar="GB", help="size of table and slot (1)")
    parser.add_argument("--hosts", type=int, default=4, metavar="N", help="hosts, with a worker and a server each (4)")
    parser.add_argument("--steps", type=int, default=3, metavar="N", help="steps per plan (3)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Runs all jobs, compares their values, and prints the seconds of the changes."""
    if reason := why_not():
        sys.exit(f"replan: {reason}")
    script, steps = [str(_SCRIPT), str(int(arguments.gigabytes * 1e9 / (8 * _WIDTH))), str(_WIDTH)], arguments.steps
    words = [*script, "-"]
    with Lab(arguments.hosts) as lab:
        resource = ["-r", str(lab.resource_file(1, [1] * arguments.hosts))]
        plans = {route: str(lab.folder / f"{route}.json") for route in ROUTES}
        for route, file in plans.items():
            output_of(lab, ["plan", "--json", file, *resource, *words, route, "0"])
        following = [plans[route] for route in ROUTES[1:]]
        changed = output_of(lab, ["run", *resource, *words, ROUTES[0], str(steps), *following])
        kept = output_of(lab, ["run", *resource, *words, ROUTES[0], str(steps * len(ROUTES))])
        folder = _IN_MEMORY / f"parallax-replan-{lab.names[0]}"
        try:
            jobs = [
                output_of(lab, ["run", *resource, "--plan", plans[route], *script, str(folder), route, str(steps)])
                for route in ROUTES
            ]
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    print("\n".join([*report(changed, kept, steps), *report_of_jobs(jobs, kept)]))


def report(changed: str, kept: str, steps: int) -> list[str]:
    """Returns lines on the job that changes its plan and the one that keeps it.

    Args:
        changed: output of the job that changes its plan.
        kept: output of the job that keeps its plan.
        steps: steps per plan.

    Raises:
        SystemExit: a change is missing, or the values differ.
    """
    lines = re.findall(r"The plan was changed in .*", changed)
    if len(lines) != len(ROUTES) - 1:
        sys.exit(f"replan: the job must report {len(ROUTES) - 1} plan changes, but reports {len(lines)}.\n{changed}")
    said = [f"{now} to {after}: {line}" for now, after, line in zip(ROUTES, ROUTES[1:], lines, strict=False)]
    for what, count in (("loss", steps * len(ROUTES)), ("digest", 1)):
        said.append(_compared(what, _numbers(changed, what), _numbers(kept, what), count))
    return said


def report_of_jobs(jobs: Sequence[str], kept: str) -> list[str]:
    """Returns lines on the jobs that continue from each other's checkpoints.

    Args:
        jobs: their output, in order.
        kept: output of the job that keeps its plan.

    Raises:
        SystemExit: a job did not print when it was ready and when it stopped, or the values differ.
    """
    said = []
    for now, after, job, following in zip(ROUTES, ROUTES[1:], jobs, jobs[1:], strict=False):
        stopped_s, ready_s = _numbers(job, "stops"), _numbers(following, "ready")
        if not stopped_s or not ready_s:
            sys.exit(f"replan: a job must print when it stopped, and the next one when it was ready.\n{following}")
        said.append(f"{now} to {after}, by a new job from a checkpoint: {max(ready_s) - max(stopped_s):.2f} s")
    ranks = sorted({rank for job in jobs for rank in _ranks(job)})
    losses = [number for rank in ranks for job in jobs for number in _numbers(job, "loss", rank)]
    said.append(_compared("loss", losses, _numbers(kept, "loss"), len(jobs)))
    return [*said, _compared("digest", _numbers(jobs[-1], "digest"), _numbers(kept, "digest"), 1)]


def _compared(what: str, values: Sequence[float], expected: Sequence[float], count: int) -> str:
    """Returns a line on the largest relative difference from the numbers of the job that keeps its plan."""
    if len(values) != len(expected) or len(values) < count:
        sys.exit(f"replan: the jobs must print equally many of {what}, but print {len(values)} and {len(expected)}.")
    most = max(abs(a - b) / max(abs(b), 1e-30) for a, b in zip(values, expected, strict=True))
    if not most <= _TOLERANCE:
        sys.exit(f"replan: {what} differs by {most:.1e} (relative) from the job that keeps its plan.")
    return f"{what}: relative difference of at most {most:.1e} from the job that keeps its plan"


def _ranks(text: str) -> list[int]:
    return [int(rank) for rank in re.findall(r"^\[(\d+)\] loss ", text, re.M)]


def _numbers(text: str, what: str, rank: int | None = None) -> list[float]:
    """Parses the numbers that were printed after a word, in order of ranks; of one rank, or of all."""
    matches = re.findall(rf"^\[(\d+)\] {what} (\S+)$", text, re.M)
    return [float(number) for own, number in sorted(matches, key=lambda line: int(line[0])) if rank in (None, int(own))]
