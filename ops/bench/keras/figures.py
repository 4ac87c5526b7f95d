"""Step times of the spellings of a model, with their ratios and spread."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

ASKED = 1.05
"""Target for the step time of `fit` with merged rows over that of the graph."""


@dataclass(frozen=True, slots=True)
class Step:
    """The step time of one job.

    Attributes:
        wall_s: wall time, seconds.
        cpu_s: processor seconds of all the job's processes.
    """

    wall_s: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Turn:
    """Step times of one job per spelling, run one after the other.

    Attributes:
        graph: the TF1 graph.
        merged: Keras's `fit` with merged rows.
        apart: Keras's `fit` with equal rows apart, as in plain Keras.
    """

    graph: Step
    merged: Step
    apart: Step


@dataclass(frozen=True, slots=True)
class Ratio:
    """Ratios of the step times of two spellings, over all turns.

    Attributes:
        median: the median.
        least: the smallest.
        most: the largest.
    """

    median: float
    least: float
    most: float


def step_of(seconds: Sequence[float], cpu_seconds: Sequence[float], steps: int) -> Step:
    """Returns a job's step time, over all epochs but the first, which includes connecting and preparing graphs.

    Args:
        seconds: wall time of each epoch.
        cpu_seconds: processor seconds of each epoch.
        steps: steps of an epoch.

    Raises:
        ValueError: there are fewer than two epochs.
    """
    if len(seconds) < 2:
        raise ValueError(f"Step times are measured from the second epoch on, but the job had {len(seconds)}.")
    return Step(statistics.median(seconds[1:]) / steps, statistics.median(cpu_seconds[1:]) / steps)


def ratio_of(over: Sequence[float], under: Sequence[float]) -> Ratio:
    """Returns the spread of the ratios of two series, turn by turn."""
    ratios = [a / b for a, b in zip(over, under, strict=True)]
    return Ratio(statistics.median(ratios), min(ratios), max(ratios))


def report(turns: Sequence[Turn], workers: int) -> Iterator[str]:
    """Yields the lines of the report."""
    graph, merged, apart = ([getattr(turn, name) for turn in turns] for name in ("graph", "merged", "apart"))
    yield f"A step of {workers} workers, median of {len(turns)} jobs of each:"
    yield f"{'':24}{'seconds':>12}{'processor s':>14}"
    for name, steps in (("TF1 graph", graph), ("fit, merge_rows=True", merged), ("fit", apart)):
        wall, cpu = (statistics.median(getattr(s, field) for s in steps) for field in ("wall_s", "cpu_s"))
        yield f"{name:24}{wall:12.4f}{cpu:14.4f}"
    for name, field in (("Seconds", "wall_s"), ("Processor seconds", "cpu_s")):
        of_graph, of_merged, of_apart = ([getattr(step, field) for step in steps] for steps in (graph, merged, apart))
        ratio = ratio_of(of_merged, of_graph)
        holds = "within" if ratio.median <= ASKED else "NOT within"
        yield f"{name}: fit with merged rows takes {_text(ratio)} the graph's, {holds} the target, {ASKED}."
        yield f"{name}: fit with equal rows apart takes {_text(ratio_of(of_apart, of_merged))} those with merged rows."


def _text(ratio: Ratio) -> str:
    return f"{ratio.median:.3f} times ({ratio.least:.3f} to {ratio.most:.3f})"
