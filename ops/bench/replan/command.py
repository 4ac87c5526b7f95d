"""The command `python -m ops.bench replan`: seconds of changes of plan in a job that trains, on emulated hosts.

A job goes from `alltoall` to `allgather`, to `ps`, and back to `alltoall`; another one keeps its plan. The losses of
all steps, and a sum over rows in the end, are compared.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

from ops.bench.on_lab import output_of
from ops.lab.lab import Lab, why_not

ROUTES = ("alltoall", "allgather", "ps", "alltoall")
_SCRIPT = Path(__file__).with_name("script.py")
_WIDTH = 64
_TOLERANCE = 1e-5  # float32 sums in another order


def add_command(commands: Any) -> None:
    """Adds `replan` to the benchmark's command line."""
    parser = commands.add_parser("replan", help="seconds of changes of plan in a job that trains, on emulated hosts")
    parser.add_argument("--gigabytes", type=float, default=1.0, metavar="GB", help="table and slot together (1)")
    parser.add_argument("--hosts", type=int, default=4, metavar="N", help="of a worker and a server each (4)")
    parser.add_argument("--steps", type=int, default=3, metavar="N", help="by each plan (3)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Runs both jobs, compares them, and prints what the changes took."""
    if reason := why_not():
        sys.exit(f"replan: {reason}")
    words = [str(_SCRIPT), str(int(arguments.gigabytes * 1e9 / (8 * _WIDTH))), str(_WIDTH)]
    with Lab(arguments.hosts) as lab:
        resource = ["-r", str(lab.resource_file(1, [1] * arguments.hosts))]
        plans = {route: str(lab.folder / f"{route}.json") for route in ROUTES}
        for route, file in plans.items():
            output_of(lab, ["plan", "--json", file, *resource, *words, route, "0"])
        following = [plans[route] for route in ROUTES[1:]]
        changed = output_of(lab, ["run", *resource, *words, ROUTES[0], str(arguments.steps), *following])
        kept = output_of(lab, ["run", *resource, *words, ROUTES[0], str(arguments.steps * len(ROUTES))])
    print("\n".join(report(changed, kept, arguments.steps)))


def report(changed: str, kept: str, steps: int) -> list[str]:
    """What is said of the two jobs.

    Args:
        changed: what the job printed whose plan was changed.
        kept: what the other one printed.
        steps: by each plan.

    Raises:
        SystemExit: a change is missing, or the values differ.
    """
    lines = re.findall(r"The plan was changed in .*", changed)
    if len(lines) != len(ROUTES) - 1:
        sys.exit(f"replan: {len(ROUTES) - 1} changes of plan were asked for, and {len(lines)} are told of.\n{changed}")
    said = [f"{now} to {after}: {line}" for now, after, line in zip(ROUTES, ROUTES[1:], lines, strict=False)]
    for what, count in (("loss", steps * len(ROUTES)), ("digest", 1)):
        found, wanted = (_numbers(text, what) for text in (changed, kept))
        if len(found) != len(wanted) or len(found) < count:
            sys.exit(f"replan: the jobs must print as many of {what}, and they print {len(found)} and {len(wanted)}.")
        most = max(abs(a - b) / max(abs(b), 1e-30) for a, b in zip(found, wanted, strict=True))
        if not most <= _TOLERANCE:
            sys.exit(f"replan: {what} differs by {most:.1e} of itself from that of the job that keeps its plan.")
        said.append(f"{what}: at most {most:.1e} of itself from that of a job that keeps its plan")
    return said


def _numbers(text: str, what: str) -> list[float]:
    """What was printed after a word, by rank and in order."""
    found = re.findall(rf"^\[(\d+)\] {what} (\S+)$", text, re.M)
    return [float(number) for _, number in sorted(found, key=lambda line: int(line[0]))]
