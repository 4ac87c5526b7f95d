"""The command `python -m ops.bench predictions`: arguments and output."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ops.bench.jobs.steps import Rounds
from ops.bench.predictions.measure import Wanted, cases, missing_cases
from ops.bench.predictions.results import table
from ops.bench.race.accelerators import slowed, twin_sizes
from ops.bench.race.field import NotRunning
from ops.lab import why_not
from ops.lab.rates import parse_rate
from ops.twin.clusters import CLUSTERS

_MODELS = "lm,nmt,recsys,dense,word2vec,translation"
_RATE = "200mbit"


def add_command(commands: Any) -> None:
    """Adds `predictions` to the benchmark's command line."""
    parser = commands.add_parser(
        "predictions",
        help="the error of predicted step times, at a link rate and on hosts that were not calibrated",
        description="Calibrates emulated hosts at some link rates, derives the profiles of other hosts and links, and "
        "compares the step times that plans predict there with those of the jobs that run these plans.",
    )
    parser.add_argument("--models", type=_words, metavar="NAME[,NAME...]", help=f"default {_MODELS}")
    parser.add_argument(
        "--accelerators",
        choices=tuple(CLUSTERS),
        metavar="CLUSTER",
        help=f"predict the twin of a cluster: {', '.join(CLUSTERS)}. Models are its networks, links are the twin's",
    )
    parser.add_argument(
        "--rates", type=_rates, default="100mbit,400mbit", metavar="RATE[,RATE...]", help="calibrated link rates"
    )
    parser.add_argument(
        "--held-out", type=parse_rate, metavar="RATE", help="measured link rate (200mbit, or the twin's slowed rate)"
    )
    parser.add_argument("--from-hosts", type=int, default=4, metavar="N", help="hosts calibrated and measured (4)")
    parser.add_argument("--hosts", type=int, default=8, metavar="N", help="hosts measured only (8)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="rounds of each measurement (5)")
    parser.add_argument("--turn-seconds", type=float, default=1.5, metavar="S", help="about S seconds per round (1.5)")
    add_folder(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the cases to FILE")
    parser.set_defaults(run=run)


def add_folder(parser: argparse.ArgumentParser) -> None:
    """Adds the options that split a long run into several."""
    parser.add_argument("--keep", type=Path, metavar="DIR", help="store results in DIR, and resume from them")
    parser.add_argument("--within", type=float, metavar="S", help="start no new measurement after S seconds")


def run(arguments: argparse.Namespace) -> None:
    """Measures the cases, and prints the table."""
    reason = why_not()
    if reason:
        print(f"No emulated hosts ({reason}), so there are no links of a known rate, and nothing is measured.")
        return
    began_s = time.monotonic()
    with folder_of(arguments.keep) as folder:
        try:
            wanted = wanted_of(arguments, folder)
            measured_cases = cases(wanted, lambda: _in_time(began_s, arguments.within), _log)
        except (NotRunning, ValueError) as error:
            sys.exit(f"predictions: {error}")
    print("\n".join(table(measured_cases)))
    if missing := missing_cases(wanted, measured_cases):
        print(f"{missing} more cases were not measured within the time of --within.")
    if arguments.json:
        text = json.dumps([{**asdict(case), "error": case.error} for case in measured_cases], indent=1)
        arguments.json.write_text(text + "\n", encoding="utf-8")


def wanted_of(arguments: argparse.Namespace, folder: Path) -> Wanted:
    """Returns the measurement that the arguments describe.

    Raises:
        ValueError: the cluster has no pace for a network.
    """
    name = arguments.accelerators
    models, held_out = arguments.models or _words(_MODELS), arguments.held_out or parse_rate(_RATE)
    if name:
        models = arguments.models or tuple(CLUSTERS[name].paces)
        rate = slowed(CLUSTERS[name].rate_bytes_per_s, twin_sizes(name, models[0], {}))  # the same for all networks
        held_out = arguments.held_out or rate
    return Wanted(
        models,
        arguments.rates,
        held_out,
        arguments.from_hosts,
        arguments.hosts,
        Rounds(arguments.rounds, arguments.turn_seconds),
        folder,
        name,
    )


@contextlib.contextmanager
def folder_of(given: Path | None) -> Iterator[Path]:
    """Yields the folder for results: the user's, or a temporary one."""
    if given is not None:
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="parallax-bench-") as folder:
        yield Path(folder)


def _in_time(began_s: float, within_s: float | None) -> bool:
    return within_s is None or time.monotonic() - began_s < within_s


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _rates(text: str) -> tuple[int, ...]:
    return tuple(map(parse_rate, text.split(",")))
