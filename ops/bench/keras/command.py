"""The command `python -m ops.bench keras`: arguments, jobs and output."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ops.bench.keras.figures import Step, Turn, report, step_of
from ops.bench.keras.script import SPELLINGS, Job
from ops.bench.on_this_machine import printed_by
from ops.bench.race.models.recsys import RecSys


def add_command(commands: Any) -> None:
    """Adds `keras` to the benchmark's command line."""
    parser = commands.add_parser(
        "keras",
        help="step times of Keras's fit and of the same model's TF1 graph",
        description="Trains the race's recsys model as a TF1 graph and by Keras's fit, in alternating jobs, and prints "
        "their step times.",
    )
    parser.add_argument("--pairs", type=int, default=3, metavar="N", help="jobs of each kind (3)")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="workers of a job, on this machine (2)")
    parser.add_argument("--steps", type=int, default=100, metavar="N", help="steps of an epoch (100)")
    parser.add_argument("--epochs", type=int, default=5, metavar="N", help="epochs of a job, the first not counted (5)")
    parser.add_argument("--size", action="append", default=[], metavar="NAME=NUMBER", help="a size of the model")
    parser.add_argument(
        "--profile",
        type=Path,
        metavar="FOLDER",
        help="write cProfile's profiles of worker 0, or of the process of fit, to FOLDER",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Runs the jobs, and prints their step times."""
    sizes = {name: int(number) for name, _, number in (text.partition("=") for text in arguments.size)}
    try:
        RecSys(**sizes)
    except TypeError as error:
        sys.exit(f"keras: {error}")
    if arguments.epochs < 2:
        sys.exit(f"keras: --epochs must be 2 or more, as the first is not counted, got {arguments.epochs}.")
    turns = []
    for number in range(arguments.pairs):
        steps_by_spelling = {}
        for spelling in SPELLINGS:
            steps_by_spelling[spelling] = _measured(spelling, sizes, arguments)
            print(
                f"{number + 1} of {arguments.pairs}, {spelling}: {steps_by_spelling[spelling]}",
                file=sys.stderr,
                flush=True,
            )
        turns.append(Turn(**steps_by_spelling))
    print("\n".join(report(turns, arguments.workers)))


def _measured(spelling: str, sizes: dict[str, int], arguments: argparse.Namespace) -> Step:
    """Runs one job, and returns its step time."""
    with tempfile.TemporaryDirectory(prefix="parallax-bench-") as folder:
        counts = (arguments.workers, arguments.steps, arguments.epochs)
        job = Job(spelling, folder, *counts, sizes, bool(arguments.profile))
        file = Path(folder) / "job.json"
        file.write_text(json.dumps(asdict(job)), encoding="utf-8")
        printed_by("keras", ["ops.bench.keras.script", str(file)])
        if arguments.profile:
            arguments.profile.mkdir(parents=True, exist_ok=True)
            (Path(folder) / f"{spelling}.prof").rename(arguments.profile / f"{spelling}.prof")
        seconds, cpu_seconds = json.loads((Path(folder) / "figures.json").read_text(encoding="utf-8"))
        return step_of(seconds, cpu_seconds, arguments.steps)
