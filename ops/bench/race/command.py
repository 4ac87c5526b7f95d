"""The command `python -m ops.bench race`: arguments, output, exit status."""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import re
import signal
import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import psutil

from ops.bench.race.accelerators import MODEL, has_losses, slowed, twin_sizes
from ops.bench.race.agreement import agreements
from ops.bench.race.field import NotRunning
from ops.bench.race.models import model_of
from ops.bench.race.place import place_of
from ops.bench.race.results import Race, Ran, Results
from ops.bench.race.rounds import Wanted, run_race
from ops.bench.race.systems import BESIDE, SYSTEMS, python_of
from ops.lab import why_not
from ops.twin.clusters import CLUSTERS

_UNITS = {"": 1 / 8, "bit": 1 / 8, "kbit": 1e3 / 8, "mbit": 1e6 / 8, "gbit": 1e9 / 8}
_DEFAULT_RATE = 25_000_000
_NO_LOSSES = "Losses: the layers output zeros. `--size values=real` computes and compares losses."
_DEFAULT_SYSTEMS = "parallax,horovod,horovod-dense,tf-ps"


def add_command(commands: Any) -> None:
    """Adds `race` to the benchmark's command line."""
    parser = commands.add_parser(
        "race",
        help="step times of Parallax and of alternative systems on an emulated cluster",
        description="Runs systems on the same emulated hosts, in interleaved turns. Exit status 1: losses of "
        "synchronous systems differ, or no system ran.",
    )
    parser.add_argument(
        "--hosts", type=_numbers, metavar="N[,N...]", help="numbers of hosts, a race for each (4, or the cluster's)"
    )
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="workers on each host (1)")
    parser.add_argument("--rate", type=rate, help="rate of each link; 0: no limit (200mbit, or the cluster's)")
    parser.add_argument("--model", help="embed (the default), lm, nmt, dense, recsys, word2vec, translation, twin")
    parser.add_argument(
        "--accelerators",
        choices=tuple(CLUSTERS),
        metavar="CLUSTER",
        help=f"race in the twin of a cluster: {', '.join(CLUSTERS)}. Models are lm (the default), nmt, resnet50, "
        "inception_v3, wide; --rate is the rate of the cluster's links, which are slowed",
    )
    parser.add_argument("--size", action="append", default=[], metavar="NAME=VALUE", help="a size of the model")
    parser.add_argument("--systems", type=systems_of, default=_DEFAULT_SYSTEMS, help=", ".join(SYSTEMS))
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="turns of each system (5)")
    parser.add_argument("--turn-seconds", type=float, default=5.0, metavar="S", help="about S seconds per turn (5)")
    parser.add_argument("--start-limit", type=float, default=300.0, metavar="S", help="time limit of a start (300)")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="threads of each process within an op (1)")
    parser.add_argument("--inter-threads", type=int, default=2, metavar="N", help="ops a process runs in parallel (2)")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="a variable of all processes")
    parser.add_argument("--beside", type=Path, metavar="DIR", help=f"another checkout of the project, run as {BESIDE}")
    parser.add_argument("--local", action="store_true", help="run processes of this machine, without a lab")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to FILE")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the page to FILE, and its picture as .png")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Runs the races, prints the results, and exits with the status."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    reason = "--local was given" if arguments.local else why_not()
    results = Results(
        "python -m ops.bench " + " ".join(sys.argv[1:]),
        _machine(),
        datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        _shortfalls(reason),
        (),
    )
    wanted = wanted_of(arguments)
    if not has_losses(wanted.model, wanted.sizes):
        results = replace(results, shortfalls=(*results.shortfalls, _NO_LOSSES))
    try:
        for hosts in arguments.hosts or [CLUSTERS[arguments.accelerators].hosts if arguments.accelerators else 4]:
            with place_of(hosts, wanted.rate_bytes_per_s or None, not reason) as place:
                race = run_race(place, wanted, _log)
            results = replace(results, races=(*results.races, race))
            if arguments.json:
                arguments.json.write_text(results.to_json(), encoding="utf-8")
    except NotRunning as error:
        sys.exit(f"race: {error}")
    print(_text(results))
    _write_pictures(results, arguments.html)
    lines, agree = _agreement_lines(results.races)
    print("\n".join(lines))
    ran = any(run.turns for race in results.races for run in race.runs)
    sys.exit(0 if agree and ran else 1)


def wanted_of(arguments: argparse.Namespace) -> Wanted:
    """Returns the race that the arguments describe.

    Raises:
        SystemExit: the model or one of its sizes does not exist.
    """
    if (BESIDE in arguments.systems) != (arguments.beside is not None):
        sys.exit(f"race: {BESIDE} among the systems and --beside DIR belong together.")
    beside = arguments.beside.resolve() if arguments.beside else None
    if beside and not ((beside / "parallax" / "__init__.py").is_file() and Path(python_of(beside)).is_file()):
        sys.exit(f"race: --beside must be a checkout of the project after `make install`, but {beside} is not.")
    try:
        model, sizes, link = _model(arguments)
    except ValueError as error:
        sys.exit(f"race: {error}")
    return Wanted(
        model,
        sizes,
        arguments.systems,
        arguments.workers,
        link,
        arguments.rounds,
        arguments.turn_seconds,
        arguments.start_limit,
        arguments.threads,
        arguments.inter_threads,
        dict(_pair(text) for text in arguments.env),
        str(beside or ""),
    )


def _model(arguments: argparse.Namespace) -> tuple[str, dict[str, Any], int]:
    """Returns name and sizes of the model, and the rate of the links."""
    cluster = arguments.accelerators
    model = MODEL if cluster else arguments.model or "embed"
    kinds = {one.name: type(one.default) for one in fields(type(model_of(model)))}  # type: ignore[arg-type]
    sizes = {name: _value(name, text, kinds) for name, text in map(_pair, arguments.size)}
    link = _DEFAULT_RATE if arguments.rate is None else arguments.rate
    if cluster:
        sizes = twin_sizes(cluster, arguments.model or "lm", sizes)
        link = slowed(CLUSTERS[cluster].rate_bytes_per_s if arguments.rate is None else arguments.rate, sizes)
    model_of(model, **sizes)
    return model, sizes, link


def _value(name: str, text: str, kinds: dict[str, type]) -> Any:
    if name not in kinds:
        raise ValueError(f"A size must be one of {', '.join(kinds)}, got {name!r}.")
    if kinds[name] not in (int, float, str):
        raise ValueError(f"{name} cannot be set from the command line.")
    return kinds[name](text)


def _text(results: Results) -> str:
    try:
        from ops.bench.race import report
    except ImportError:
        return "\n".join(_plain(results))
    return str(report.table_text(results, _differences(results)))


def _write_pictures(results: Results, html: Path | None) -> None:
    if html is None:
        return
    from ops.bench.race import report

    report.write_html(results, html, _differences(results))
    report.write_png(results, html.with_suffix(".png"))


def _differences(results: Results) -> list[dict[str, float]]:
    """Returns, for each race, system -> largest difference of its losses from the first system's."""
    return [{one.system: one.worst for one in agreements(race.runs)} for race in results.races]


def _plain(results: Results) -> Iterator[str]:
    """Yields a line per system, for a machine without the report's libraries."""
    yield from results.shortfalls
    for race in results.races:
        yield f"{race.model} on {race.hosts} hosts, compute {race.compute_s:.4f} s a step"
        yield from (_line(run) for run in race.runs)


def _line(run: Ran) -> str:
    if not run.turns:
        return f"  {run.system}: {run.problem}"
    wire = max(max((*turn.received_bytes, *turn.sent_bytes), default=0) / turn.steps for turn in run.turns)
    return f"  {run.system}: {run.step_s:.4f} s a step, {wire / 1e6:.3f} MB"


def _agreement_lines(races: tuple[Race, ...]) -> tuple[list[str], bool]:
    lines, agree = [], True
    for race in races:
        for one in agreements(race.runs):
            agree = agree and one.holds
            lines.append(
                f"Losses on {race.hosts} hosts, {one.system} against {one.reference}: {one.steps} steps, largest "
                f"relative difference {one.worst:.1e} in step {one.at_step + 1}"
                + ("" if one.holds else ", which is WRONG: they do not compute the same")
            )
    return lines, agree


def _shortfalls(reason: str) -> tuple[str, ...]:
    if not reason:
        return ()
    return (
        f"No emulated hosts ({reason}): the workers are processes of this machine, on loopback. Not shown: bytes on "
        "the wire, and the effects of the link rate and of separate hosts on step times.",
    )


def _machine() -> str:
    model = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
    name = model.group(1) if model else platform.machine()
    memory = psutil.virtual_memory().total / 2**30
    return f"{len(os.sched_getaffinity(0))} cores of {name}, {memory:.0f} GiB, Linux {platform.release()}"


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _pair(text: str) -> tuple[str, str]:
    name, is_pair, value = text.partition("=")
    if not is_pair:
        sys.exit(f"race: expected NAME=VALUE, got {text!r}.")
    return name, value


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def systems_of(text: str) -> tuple[str, ...]:
    """Parses names of systems, without duplicates."""
    names = tuple(dict.fromkeys(text.split(",")))
    wrong = [name for name in names if name not in SYSTEMS]
    if wrong:
        raise argparse.ArgumentTypeError(f"{', '.join(wrong)}: no such system. Systems are {', '.join(SYSTEMS)}.")
    return names


def rate(text: str) -> int:
    """Parses a rate into bytes per second; 0 means no limit."""
    match = re.fullmatch(r"([\d.]+)([a-z]*)", text.lower())
    if not match or match.group(2) not in _UNITS:
        raise argparse.ArgumentTypeError(f"{text}: a rate must be like 200mbit or 1gbit, or 0 for no limit.")
    return int(float(match.group(1)) * _UNITS[match.group(2)])
