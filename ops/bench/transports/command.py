"""The command `python -m ops.bench transports`: models, batches and layouts by each transport."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ops.bench.race.field import NotRunning
from ops.bench.race.models import model_of
from ops.bench.race.place import place_of
from ops.bench.race.results import Race
from ops.bench.race.rounds import Wanted, run_race
from ops.bench.transports.table import TRANSPORTS, Row, table_lines
from ops.lab import why_not
from ops.lab.rates import parse_rate

_INTER_THREADS = 2


def add_command(commands: Any) -> None:
    """Adds `transports` to the benchmark's command line."""
    parser = commands.add_parser(
        "transports",
        help="throughput by servers, MPI and Horovod, over TCP and shared memory",
        description="Measures models, batches and layouts by each transport, in turns: throughput, efficiency, bytes "
        "on the wire, share of communication. Exit status 1: no transport ran.",
    )
    parser.add_argument(
        "--models", type=_words, default="dense,recsys", metavar="NAME[,NAME...]", help="(dense,recsys)"
    )
    parser.add_argument("--batches", type=_numbers, default="8,32", metavar="N[,N...]", help="batch per worker (8,32)")
    parser.add_argument(
        "--layouts",
        type=_layouts,
        default="1x2,1x4,2x1,4x1",
        metavar="HxW[,HxW...]",
        help="hosts x workers per host (1x2,1x4,2x1,4x1)",
    )
    parser.add_argument("--transports", type=_transports, default=",".join(TRANSPORTS), help=", ".join(TRANSPORTS))
    parser.add_argument("--rate", type=parse_rate, default="1gbit", metavar="RATE", help="link rate (1gbit)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="turns of each transport (5)")
    parser.add_argument("--turn-seconds", type=float, default=2.0, metavar="S", help="about S seconds per turn (2)")
    parser.add_argument("--start-limit", type=float, default=300.0, metavar="S", help="time limit of a start (300)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the races to FILE")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Measures, and prints the table; exits with status 1 if nothing ran."""
    rows: list[Row] = []
    skipped = [layout for layout in arguments.layouts if layout[0] > 1 and why_not()]
    for model in arguments.models:
        for batch in arguments.batches:
            wanted = _read_request(arguments, model, batch)
            alone_s = _race(replace(wanted, systems=(), workers=1), 1).compute_s
            for hosts, workers in arguments.layouts:
                if (hosts, workers) not in skipped:
                    race = _race(replace(wanted, workers=workers), hosts)
                    rows += [Row(model, batch, race, ran, alone_s) for ran in race.runs]
    print("\n".join(table_lines(rows)))
    for hosts, workers in skipped:
        print(f"Not measured: {hosts} x {workers} (no emulated hosts: {why_not()}).")
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")
    sys.exit(0 if any(row.run.turns for row in rows) else 1)


def _race(wanted: Wanted, hosts: int) -> Race:
    """Runs a race: of one host on this machine, of several on emulated hosts."""
    with place_of(hosts, wanted.rate_bytes_per_s, hosts > 1) as place:
        try:
            return run_race(place, wanted, lambda line: print(line, file=sys.stderr, flush=True))
        except NotRunning as error:
            sys.exit(f"transports: {error}")


def _read_request(arguments: argparse.Namespace, model: str, batch: int) -> Wanted:
    sizes = {"batch_size": batch}
    _check_sizes(model, sizes)
    return Wanted(
        model,
        sizes,
        arguments.transports,
        1,
        arguments.rate,
        arguments.rounds,
        arguments.turn_seconds,
        arguments.start_limit,
        1,
        _INTER_THREADS,
        {},
    )


def _check_sizes(model: str, sizes: Mapping[str, Any]) -> None:
    """Exits if there is no such model, or if it has no size called `batch_size`."""
    try:
        model_of(model, **sizes)
    except (ValueError, TypeError) as error:
        sys.exit(f"transports: --models {model}: {error}")


def _words(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text.split(",")))


def _transports(text: str) -> tuple[str, ...]:
    if wrong := [word for word in _words(text) if word not in TRANSPORTS]:
        raise argparse.ArgumentTypeError(f"transports are {', '.join(TRANSPORTS)}; received {wrong[0]!r}")
    return _words(text)


def _numbers(text: str) -> tuple[int, ...]:
    found = tuple(int(word) if word.isdecimal() else 0 for word in text.split(","))
    if min(found) < 1:
        raise argparse.ArgumentTypeError(f"numbers of at least 1, separated by commas; received {text!r}")
    return found


def _layouts(text: str) -> tuple[tuple[int, int], ...]:
    found = []
    for word in text.split(","):
        hosts, _, workers = word.partition("x")
        if not (hosts.isdecimal() and workers.isdecimal() and int(hosts) * int(workers) > 1):
            raise argparse.ArgumentTypeError(f"a layout is HOSTSxWORKERS, of two workers or more; received {word!r}")
        found.append((int(hosts), int(workers)))
    return tuple(found)
