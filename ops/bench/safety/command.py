"""The command `python -m ops.bench safety`: the cost of liveness and of the fence per step, as ratios with spread.

For each model and mechanism, the same job runs with and without the mechanism on this machine. The two jobs take turns,
with the other one stopped. Each round has a turn of both, in alternating order, and yields the ratios with / without of
the median step time and of the processor time per step, over all processes of the job. The output is the median of the
ratios, their quartiles, and the 95 % confidence interval of their median (by the binomial distribution of ranks). The
fence is measured with servers, whose connections it checks.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ops.bench.race.field import Entry
from ops.bench.race.place import place_of
from ops.bench.race.rounds import WARM_UP_STEPS
from ops.bench.race.turns import Task
from ops.bench.safety.off import KINDS
from ops.bench.safety.waiting import core_s_per_s

_LIMIT_S = 400.0
_SYSTEMS = {"liveness": "parallax", "fence": "parallax-ps"}


@dataclass(frozen=True, slots=True)
class Ratios:
    """Ratios with / without of one figure, by round."""

    values: tuple[float, ...]

    def __str__(self) -> str:
        ordered = sorted(self.values)
        low, _, high = statistics.quantiles(ordered, n=4)
        begin, end = interval_of_median(ordered)
        return (
            f"{statistics.median(ordered):.4f} (quartiles {low:.4f} and {high:.4f}; 95 % interval of the median "
            f"{begin:.4f} to {end:.4f})"
        )


def add_command(commands: Any) -> None:
    """Adds `safety` to the benchmark's command line."""
    parser = commands.add_parser("safety", help="the cost of liveness and of the fence per step")
    parser.add_argument("--models", default="embed,recsys", metavar="NAME[,NAME...]")
    parser.add_argument("--off", default=",".join(KINDS), metavar="KIND[,KIND...]", help="mechanisms to measure")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="workers of each job (2)")
    parser.add_argument("--rounds", type=int, default=20, metavar="N", help="turns of each job (20)")
    parser.add_argument("--waiting", type=float, metavar="S", help="measure idle jobs instead, each for S seconds")
    parser.add_argument("--turn-seconds", type=float, default=5.0, metavar="S", help="about S seconds per turn (5)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Measures, and prints the ratios for each model and mechanism, or the cost of idle jobs."""
    if arguments.waiting:
        seconds = {kind: core_s_per_s(kind, arguments.workers, arguments.waiting) for kind in ("on", "off")}
        more_s = seconds["on"] - seconds["off"]
        share = 100 * more_s / len(os.sched_getaffinity(0))
        print(f"{arguments.workers} idle workers, ms of CPU time per second: {1e3 * seconds['on']:.2f} with liveness,")
        print(f"{1e3 * seconds['off']:.2f} without; the difference is {share:.2f} % of this machine.")
        return
    for kind in arguments.off.split(","):
        if kind not in KINDS:
            sys.exit(f"safety: --off must be of {', '.join(KINDS)}, got {kind!r}.")
        for model in arguments.models.split(","):
            steps, cpus, step_s, cpu_s = _measured(model, kind, arguments)
            print(
                f"{model}, {kind}: {arguments.rounds} rounds, {1e3 * step_s:.3g} ms, {1e3 * cpu_s:.3g} ms of CPU time"
            )
            print(f"  step time  {steps}\n  processor  {cpus}", flush=True)


def interval_of_median(ordered: Sequence[float]) -> tuple[float, float]:
    """Returns a confidence interval of the median of the values' distribution, of 95 % or a little more.

    The number of values below the median is binomial, with p = 1/2.
    """
    count, below, place = len(ordered), 0.0, 0
    while place < count // 2 and (below := below + math.comb(count, place) / 2**count) <= 0.025:
        place += 1
    first = max(0, place - 1)
    return ordered[first], ordered[count - 1 - first]


def _measured(model: str, kind: str, wanted: argparse.Namespace) -> tuple[Ratios, Ratios, float, float]:
    """Returns the ratios of median step time and of processor time, and both figures with everything on."""
    times_by_kind: dict[str, list[tuple[float, float]]] = {"on": [], "off": []}
    with place_of(wanted.workers, None, in_lab=False) as place, contextlib.ExitStack() as ends:
        entries, steps = {}, 0
        for name in times_by_kind:
            more = {"environment": {}, "off": kind if name == "off" else ""}
            folder = str(place.folder / f"{model}-{kind}-{name}")
            task = Task(_SYSTEMS[kind], model, {}, folder, wanted.workers, 1, 2, more)
            entries[name] = ends.enter_context(Entry(place, task))
            warm = entries[name].take_turn(WARM_UP_STEPS, _LIMIT_S)
            steps = steps or max(3, round(wanted.turn_seconds / statistics.median(warm.step_s[WARM_UP_STEPS // 2 :])))
        for number in range(wanted.rounds + 1):
            for name in sorted(times_by_kind, reverse=number % 2 == 1):
                taken = entries[name].take_turn(steps, _LIMIT_S)
                times_by_kind[name].append((statistics.median(taken.step_s), taken.turn.cpu_s / steps))
        for entry in entries.values():
            entry.finish()
    on, off = times_by_kind["on"][1:], times_by_kind["off"][1:]  # the first round warms up
    by_figure = [Ratios(tuple(a[figure] / b[figure] for a, b in zip(on, off, strict=True))) for figure in (0, 1)]
    median_s, median_cpu_s = (statistics.median(one[figure] for one in on) for figure in (0, 1))
    return by_figure[0], by_figure[1], median_s, median_cpu_s
