"""What the two spellings of a model took for a step, and how they compare: figures, their ratio and its spread."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

ASKED = 1.05
"""A step of `fit` may take so many times what a step of the graph takes."""


@dataclass(frozen=True, slots=True)
class Step:
    """What a step took in one job.

    Attributes:
        wall_s: seconds.
        cpu_s: processor seconds of all the job's processes.
    """

    wall_s: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Pair:
    """Two jobs, one after the other.

    Attributes:
        graph: the TF1 graph's.
        fit: that of Keras's `fit`.
    """

    graph: Step
    fit: Step


@dataclass(frozen=True, slots=True)
class Ratio:
    """Ratios of `fit` to the graph, over the pairs.

    Attributes:
        median: of all.
        least: of all.
        most: of all.
    """

    median: float
    least: float
    most: float


def step_of(seconds: Sequence[float], cpu_seconds: Sequence[float], steps: int) -> Step:
    """A job's step, from its epochs but the first, in which connections are made and everything is prepared.

    Args:
        seconds: that each epoch took.
        cpu_seconds: processor seconds of each epoch.
        steps: of an epoch.

    Raises:
        ValueError: there is one epoch alone.
    """
    if len(seconds) < 2:
        raise ValueError(f"A step is measured in the second epoch and later ones, and there were {len(seconds)}.")
    return Step(statistics.median(seconds[1:]) / steps, statistics.median(cpu_seconds[1:]) / steps)


def ratio_of(over: Sequence[float], under: Sequence[float]) -> Ratio:
    """Ratios of figures, pair by pair."""
    ratios = [a / b for a, b in zip(over, under, strict=True)]
    return Ratio(statistics.median(ratios), min(ratios), max(ratios))


def report(pairs: Sequence[Pair], workers: int) -> Iterator[str]:
    """The lines of the report."""
    yield f"A step of {workers} workers, median of {len(pairs)} jobs of each:"
    yield f"{'':12}{'seconds':>12}{'processor s':>14}"
    for name, steps in (("TF1 graph", [p.graph for p in pairs]), ("Keras's fit", [p.fit for p in pairs])):
        wall, cpu = (statistics.median(getattr(s, field) for s in steps) for field in ("wall_s", "cpu_s"))
        yield f"{name:12}{wall:12.4f}{cpu:14.4f}"
    for name, field in (("Seconds", "wall_s"), ("Processor seconds", "cpu_s")):
        found = ratio_of([getattr(p.fit, field) for p in pairs], [getattr(p.graph, field) for p in pairs])
        holds = "within" if found.median <= ASKED else "NOT within"
        yield (
            f"{name}: fit takes {found.median:.3f} times the graph's ({found.least:.3f} to {found.most:.3f}), "
            f"{holds} what is asked, {ASKED}."
        )
