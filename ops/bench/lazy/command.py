"""The command `python -m ops.bench lazy`: arguments, jobs and output."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ops.bench.lazy.script import DENSE, LAZY, OPTIMIZERS, PLAIN, WHOLE, Job
from ops.bench.on_this_machine import printed_by

_FOUR = ("momentum", "rmsprop", "adam", "adamw")


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """The result of a job.

    Attributes:
        step_s: step time in seconds, the median over all epochs but the first.
        values: the weights, and the losses of the epochs.
    """

    step_s: float
    values: Mapping[str, Any]


def add_command(commands: Any) -> None:
    """Adds `lazy` to the benchmark's command line."""
    parser = commands.add_parser(
        "lazy",
        help="lazy updates compared with plain Keras",
        description="Trains a table with optimizers that update every row: by plain Keras in one process, and by "
        "workers that update touched rows only. Prints step times, and the largest difference of weights and losses.",
    )
    parser.add_argument("--optimizer", action="append", choices=list(OPTIMIZERS), help=f"(each of {', '.join(_FOUR)})")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="workers of a job, on this machine (1)")
    parser.add_argument("--pairs", type=int, default=1, metavar="N", help="jobs of each kind (1)")
    parser.add_argument("--steps", type=int, default=200, metavar="N", help="steps of an epoch (200)")
    parser.add_argument("--epochs", type=int, default=2, metavar="N", help="epochs of a job, the first not counted (2)")
    parser.add_argument("--rows", type=int, default=500_000, metavar="N", help="rows of the table (500000)")
    parser.add_argument("--width", type=int, default=32, metavar="N", help="elements of a row (32)")
    parser.add_argument("--ids", type=int, default=640, metavar="N", help="ids of a batch (640)")
    parser.add_argument("--whole", action="store_true", help="also run workers whose updates are not lazy")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Runs the jobs, and prints a line per optimizer."""
    if arguments.epochs < 2:
        sys.exit(f"lazy: --epochs must be 2 or more, as the first is not counted, got {arguments.epochs}.")
    ways = (DENSE, PLAIN, LAZY, *((WHOLE,) if arguments.whole else ()))
    print(f"{arguments.rows} x {arguments.width}, {arguments.ids} ids, {arguments.workers} worker(s)")
    print(f"{'optimizer':10}" + "".join(f"{way + ' ms':>10}{'faster':>8}{'apart':>10}" for way in ways[1:]))
    for optimizer in arguments.optimizer or _FOUR:
        runs_by_way: dict[str, list[MeasuredRun]] = {way: [] for way in ways}
        for _ in range(arguments.pairs):
            for way in ways:
                runs_by_way[way].append(_measured(way, optimizer, arguments))
        print(_line(optimizer, runs_by_way), flush=True)


def _line(optimizer: str, runs_by_way: Mapping[str, Sequence[MeasuredRun]]) -> str:
    """Returns an optimizer's line: median step times, and the largest difference of a weight or loss from DENSE."""
    medians = {way: statistics.median(one.step_s for one in ones) for way, ones in runs_by_way.items()}
    line = f"{optimizer:10}"
    for way in list(runs_by_way)[1:]:
        apart = max(_apart(a.values, b.values) for a, b in zip(runs_by_way[DENSE], runs_by_way[way], strict=True))
        line += f"{medians[way] * 1e3:10.2f}{medians[PLAIN] / medians[way]:8.1f}{apart:10.1e}"
    return line


def _apart(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    return max(float(np.max(np.abs(one[name] - other[name]))) for name in one)


def _measured(how: str, optimizer: str, arguments: argparse.Namespace) -> MeasuredRun:
    """Runs one job, and returns its result."""
    workers = 1 if how in (DENSE, PLAIN) else arguments.workers
    with tempfile.TemporaryDirectory(prefix="parallax-bench-") as folder:
        sizes = (arguments.steps, arguments.epochs, arguments.rows, arguments.width, arguments.ids)
        job = Job(how, optimizer, folder, workers, *sizes)
        file = Path(folder) / "job.json"
        file.write_text(json.dumps(asdict(job)), encoding="utf-8")
        printed_by("lazy", ["ops.bench.lazy.script", str(file)])
        seconds = json.loads((Path(folder) / "figures.json").read_text(encoding="utf-8"))
        with np.load(Path(folder) / "weights.npz") as kept:
            return MeasuredRun(
                statistics.median(seconds[1:]) / arguments.steps, {name: kept[name] for name in kept.files}
            )
