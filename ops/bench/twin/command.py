"""The command `python -m ops.bench twin`: step times of a network that cores compute, and of its twin.

First the stack of ops/twin/networks/stack.py is raced on emulated hosts, computed by the cores. Its step time without
exchanges is the pace of the twin's accelerator. Then the stack is raced in the twin, once for each dilation, on links
slowed by the same factor. Undilated, its step times should equal those of the first race. One difference remains: only
in the first race, cores compute and exchange at the same time.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ops.bench.race.accelerators import MODEL, slowed
from ops.bench.race.command import rate, systems_of
from ops.bench.race.field import NotRunning
from ops.bench.race.place import place_of
from ops.bench.race.results import Race
from ops.bench.race.rounds import Wanted, run_race
from ops.bench.race.systems import BESIDE
from ops.lab import why_not


def add_command(commands: Any) -> None:
    """Adds `twin` to the benchmark's command line."""
    parser = commands.add_parser(
        "twin",
        help="step times of a computed network and of its twin",
        description="Races a small network that cores compute, and its twin.",
    )
    parser.add_argument("--hosts", type=int, default=2, metavar="N", help="hosts, at most as many as cores (2)")
    parser.add_argument("--rate", type=rate, default="400mbit", help="rate of each link, before dilation (400mbit)")
    parser.add_argument("--dilations", default="1,8", metavar="F[,F...]", help="dilations of the twins (1,8)")
    parser.add_argument("--batch", type=int, default=1024, metavar="N", help="examples per worker and step (1024)")
    parser.add_argument("--systems", type=_systems, default="parallax,horovod,tf-ps", help="systems of `race`")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="turns of each system (5)")
    parser.add_argument("--turn-seconds", type=float, default=3.0, metavar="S", help="about S seconds per turn (3)")
    parser.set_defaults(run=run)


def _systems(text: str) -> tuple[str, ...]:
    """Parses names of systems of this checkout."""
    names = systems_of(text)
    if BESIDE in names:
        raise argparse.ArgumentTypeError(f"{BESIDE} needs another checkout. Use `race --beside DIR`.")
    return names


def run(arguments: argparse.Namespace) -> None:
    """Runs the races, and prints the table; exits with status 1 if a system did not run in one of them."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if reason := why_not():
        sys.exit(f"twin: an emulated cluster is needed: {reason}")
    races = compared(arguments, _log)
    print("\n".join(report(races[0], races[1:], arguments.rate, arguments.batch)))
    sys.exit(0 if all(run.turns for race in races for run in race.runs) else 1)


def compared(arguments: argparse.Namespace, tell: Callable[[str], None]) -> list[Race]:
    """Returns the race of the computed network, and those of its twins.

    Raises:
        SystemExit: the network does not run on one process.
    """
    computed = _race(arguments, {"values": "cores"}, 1.0, tell)
    tell(f"computed: {computed.compute_s:.4f} s a step without any exchange")
    dilations = [float(word) for word in arguments.dilations.split(",")]
    return [computed, *(_race(arguments, {"step_s": computed.compute_s}, dilation, tell) for dilation in dilations)]


def report(computed: Race, twins: Sequence[Race], rate_bytes_per_s: float, batch: int) -> Iterator[str]:
    """Yields a table with a row per system: undilated step times, and the twins' over the computed ones."""
    yield (
        f"stack on {computed.hosts} hosts, links of {rate_bytes_per_s * 8 / 1e6:.0f} Mbit/s, {batch} examples "
        f"a worker; computing takes {1000 * computed.compute_s:.1f} ms a step"
    )
    heads = [f"twin, dilated {twin.dilation:g}" for twin in twins]
    yield "  ".join([f"{'system':<18}{'computed':>24}", *(f"{head:>28}" for head in heads)])
    for one in computed.runs:
        cells = [_cell(computed, twin, one.system) for twin in twins]
        yield "  ".join([f"{one.system:<18}{_step(computed, one.system):>24}", *(f"{cell:>28}" for cell in cells)])
    yield "  ".join(
        [f"{'(alone)':<18}{1000 * computed.compute_s:>21.1f} ms"]
        + [f"{f'{1000 * twin.compute_s / twin.dilation:.1f} ms':>28}" for twin in twins]
    )


@dataclass(frozen=True, slots=True)
class _Undilated:
    """A system's undilated step time in seconds: median, fastest and slowest round."""

    median_s: float
    fastest_s: float
    slowest_s: float


def _undilated(race: Race, system: str) -> _Undilated | None:
    run = race.run_of(system)
    if not run.turns:
        return None
    steps = [turn.step_s / race.dilation for turn in run.turns]
    return _Undilated(run.step_s / race.dilation, min(steps), max(steps))


def _step(race: Race, system: str) -> str:
    undilated = _undilated(race, system)
    return _ms(undilated) if undilated else "failed"


def _cell(computed: Race, twin: Race, system: str) -> str:
    of, undilated = _undilated(computed, system), _undilated(twin, system)
    if not of or not undilated:
        return "failed"
    return f"{_ms(undilated)}, {undilated.median_s / of.median_s:.2f}"


def _ms(undilated: _Undilated) -> str:
    return f"{1000 * undilated.median_s:.1f} ms ({1000 * undilated.fastest_s:.0f}-{1000 * undilated.slowest_s:.0f})"


def _race(arguments: argparse.Namespace, sizes: dict[str, Any], dilation: float, tell: Callable[[str], None]) -> Race:
    sizes = {"network": "stack", "batch_size": arguments.batch, "divisor": 1, "dilation": dilation, **sizes}
    link = slowed(arguments.rate, sizes)
    wanted = Wanted(
        MODEL,
        sizes,
        arguments.systems,
        workers=1,
        rate_bytes_per_s=link,
        rounds=arguments.rounds,
        turn_s=arguments.turn_seconds,
        start_limit_s=300.0,
        intra_threads=1,
        inter_threads=2,
        environment={},
    )
    try:
        with place_of(arguments.hosts, link, True) as place:
            return run_race(place, wanted, tell)
    except NotRunning as error:
        sys.exit(f"twin: {error}")


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
