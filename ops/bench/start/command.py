"""The command `python -m ops.bench start`: run times of scripts that fit small models, and delays of their fits."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from ops.bench.on_this_machine import printed_by
from ops.bench.start.cases import AGAIN, CASES, LINES, RECURRENT, THREE


class TimedScript(NamedTuple):
    """One run of the script.

    Attributes:
        whole_s: seconds from its start to its end.
        started_s: for each fit, seconds from its call to its first batch.
    """

    whole_s: float
    started_s: list[float]


def add_command(commands: Any) -> None:
    """Adds `start` to the benchmark's command line."""
    parser = commands.add_parser(
        "start",
        help="run times of scripts of small models, compared with plain Keras",
        description="Runs scripts that fit small models by plain Keras and by workers, in turns. Prints median seconds "
        "of the whole script, and from a call of fit to its first batch.",
    )
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="workers of a job, on this machine (2)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="runs of each script in each way (3)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Runs the scripts, and prints their times."""
    print(f"{'script':14}{'plain s':>9}{'workers s':>11}{'more s':>8}{'ratio':>7}   fits start after s")
    wanted = {LINES: "at most 4 s more", RECURRENT: "at most 8 s more", AGAIN: "the second in 1 s"}
    wanted[THREE] = "ratio at most 2, the second in 3 s"
    for case in CASES:
        rounds = [(_time_script(case, 0), _time_script(case, arguments.workers)) for _ in range(arguments.rounds)]
        plain, workers = (_medians([one[which] for one in rounds]) for which in (0, 1))
        print(
            f"{case:14}{plain.whole_s:9.1f}{workers.whole_s:11.1f}{workers.whole_s - plain.whole_s:8.1f}"
            f"{workers.whole_s / plain.whole_s:7.2f}   {', '.join(f'{one:.2f}' for one in workers.started_s)}"
            f" (target: {wanted[case]})",
            flush=True,
        )


def _medians(timed: Sequence[TimedScript]) -> TimedScript:
    started = [statistics.median(ones) for ones in zip(*(one.started_s for one in timed), strict=True)]
    return TimedScript(statistics.median(one.whole_s for one in timed), started)


def _time_script(case: str, workers: int) -> TimedScript:
    """Runs the script once: by plain Keras, or by workers if their number is not 0."""
    script = ["ops.bench.start.script", case]
    words = ["parallax.entry.cli", "run", "--workers", str(workers), "-m", *script] if workers else script
    began_s = time.monotonic()
    printed = printed_by("start", words)
    whole_s = time.monotonic() - began_s
    line = next(line for line in printed.splitlines() if line.startswith("STARTED "))
    return TimedScript(whole_s, json.loads(line.removeprefix("STARTED ")))
