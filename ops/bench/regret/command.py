"""The command `python -m ops.bench regret`: arguments and output."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ops.bench.predictions.command import add_folder, folder_of
from ops.bench.race.field import NotRunning
from ops.bench.regret.cases import FAR, models, table
from ops.bench.regret.flip import flip_lines
from ops.bench.regret.measure import Wanted, measured_cases
from ops.lab import why_not
from ops.lab.rates import parse_rate


def add_command(commands: Any) -> None:
    """Adds `regret` to the benchmark's command line."""
    parser = commands.add_parser(
        "regret",
        help="step times of the chosen plan and of the other plans, on generated models",
        description="Combines all routes of the variables of generated models, and measures the chosen plan and the "
        f"others on emulated hosts. Plans that are predicted to take {FAR:g} times the shortest or more are counted "
        "and left out, as are those beyond --plans.",
    )
    parser.add_argument("--cases", type=int, default=20, metavar="N", help="number of models (20)")
    parser.add_argument(
        "--rates", type=_rates, default="50mbit,200mbit,1gbit", metavar="RATE[,RATE...]", help="link rates, in turn"
    )
    parser.add_argument("--hosts", type=int, default=3, metavar="N", help="hosts, with a worker and a server each (3)")
    parser.add_argument("--plans", type=int, default=6, metavar="N", help="most plans measured per case (6)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="turns of each plan (5)")
    parser.add_argument("--turn-seconds", type=float, default=0.3, metavar="S", help="about S seconds per turn (0.3)")
    parser.add_argument("--flip", action="store_true", help="measure on both sides of a printed flip point instead")
    add_folder(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the cases to FILE")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Measures the cases, and prints the table."""
    reason = why_not()
    if reason:
        print(f"No emulated hosts ({reason}), so there are no links of a known rate, and nothing is measured.")
        return
    began_s = time.monotonic()

    def in_time() -> bool:
        return arguments.within is None or time.monotonic() - began_s < arguments.within

    with folder_of(arguments.keep) as folder:
        wanted = Wanted(
            models(arguments.cases, arguments.rates),
            arguments.rates,
            arguments.hosts,
            arguments.plans,
            arguments.rounds,
            arguments.turn_seconds,
            folder,
        )
        try:
            if arguments.flip:
                print("\n".join(flip_lines(wanted, in_time, _log)))
                return
            measured = measured_cases(wanted, in_time, _log)
        except NotRunning as error:
            sys.exit(f"regret: {error}")
    print("\n".join(table(measured)))
    if len(measured) < arguments.cases:
        print(f"{arguments.cases - len(measured)} more cases were not measured within the time of --within.")
    if arguments.json:
        _write(arguments.json, [{**asdict(case), "ratio": case.ratio} for case in measured])


def _write(path: Path, cases: Sequence[dict[str, Any]]) -> None:
    """Writes the cases without the plans' JSON, which follows from the profiles."""
    for case in cases:
        for choice in case["choices"]:
            del choice["plan"]
    path.write_text(json.dumps(cases, indent=1) + "\n", encoding="utf-8")


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _rates(text: str) -> tuple[int, ...]:
    return tuple(map(parse_rate, text.split(",")))
