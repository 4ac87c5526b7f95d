"""The command `python -m ops.bench islands`: time and steps to a held-out loss, synchronous and in islands."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ops.bench.on_lab import output_of
from ops.lab import Lab, why_not
from ops.lab.rates import mbit, parse_rate

TASK_NAMES = ("lm", "recsys")
SYNCHRONOUS = "synchronous"
METHODS = {
    SYNCHRONOUS: "none",
    "local SGD, every 8": "every=8,outer_rate=1,outer_momentum=0",
    "local SGD, every 32": "every=32,outer_rate=1,outer_momentum=0",
    "DiLoCo, every 8": "every=8",
    "DiLoCo, every 32": "every=32",
}
_EVALUATE_EVERY = 32  # a multiple of each method's `every`, so that islands have just exchanged
_SCRIPT = Path(__file__).parent / "train.py"

Curve = Sequence[tuple[int, float, float]]
"""Points of (step, seconds of training, held-out loss)."""


def add_command(commands: Any) -> None:
    """Adds `islands` to the benchmark's command line."""
    parser = commands.add_parser(
        "islands",
        help="time to a held-out loss in two islands behind a slow link",
        description="Trains in two islands of two emulated hosts, synchronously and by each method, and prints time "
        "and steps to the best held-out loss that all of them reach.",
    )
    parser.add_argument("--tasks", nargs="+", choices=TASK_NAMES, default=TASK_NAMES, help="(lm recsys)")
    parser.add_argument("--steps", type=int, default=320, metavar="N", help="steps of each method (320)")
    parser.add_argument("--rate", type=parse_rate, default="1gbit", metavar="RATE", help="link rate of hosts (1gbit)")
    parser.add_argument(
        "--between", type=parse_rate, default="50mbit", metavar="RATE", help="link rate between islands (50mbit)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the curves to FILE")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Trains each task by each method, and prints a table per task."""
    if reason := why_not():
        print(f"No emulated hosts ({reason}), so nothing is measured.")
        return
    islands, found = ("a", "a", "b", "b"), dict[str, dict[str, Curve]]()
    with (
        Lab(4, arguments.rate, islands=islands, between_bytes_per_s=arguments.between) as lab,
        tempfile.TemporaryDirectory(prefix="parallax-bench-") as folder,
    ):
        file, output = str(lab.resource_file(1, islands=islands)), Path(folder, "curve.json")
        for task in arguments.tasks:
            found[task] = {}
            for method, text in METHODS.items():
                words = [task, text, str(arguments.steps), str(_EVALUATE_EVERY), str(output)]
                output_of(lab, ["run", "-r", file, str(_SCRIPT), *words])
                found[task][method] = [tuple(point) for point in json.loads(output.read_text(encoding="utf-8"))]
            between = f"{mbit(arguments.rate)} within, {mbit(arguments.between)} between"
            print("\n".join([f"{task}, 2 islands of 2 hosts, {between}", *lines_of(found[task]), ""]), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def lines_of(curves: Mapping[str, Curve]) -> list[str]:
    """Returns a task's table: for each method, the first evaluation at or below the best loss that all methods reach.

    Args:
        curves: by method, SYNCHRONOUS included.
    """
    target = max(min(loss for _, _, loss in curve) for curve in curves.values())
    reached = {method: next(point for point in curve if point[2] <= target) for method, curve in curves.items()}
    base = reached[SYNCHRONOUS]
    lines = [
        f"held-out loss {target:.4f}",
        f"{'method':20}  {'steps':>5}  {'s':>7}  {'ms/step':>7}  {'faster':>6}  last loss",
    ]
    for method, (steps, seconds, _) in reached.items():
        last, total_s, loss = curves[method][-1]
        faster = base[1] / seconds if seconds else float("inf")
        lines.append(f"{method:20}  {steps:5}  {seconds:7.1f}  {1e3 * total_s / last:7.1f}  {faster:6.2f}  {loss:.4f}")
    return lines
