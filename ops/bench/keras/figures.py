"""What the spellings of a model took for a step, and how they compare: figures, their ratios and their spread."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

ASKED = 1.05
"""A step of `fit` with merged rows may take so many times what a step of the graph takes."""


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
class Turn:
    """Jobs of all spellings, one after the other.

    Attributes:
        graph: the TF1 graph's.
        merged: that of Keras's `fit` with merged rows.
        apart: that of Keras's `fit` with equal rows apart, as in plain Keras.
    """

    graph: Step
    merged: Step
    apart: Step


@dataclass(frozen=True, slots=True)
class Ratio:
    """Ratios of two spellings, over the turns.

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
    """Ratios of figures, turn by turn."""
    ratios = [a / b for a, b in zip(over, under, strict=True)]
    return Ratio(statistics.median(ratios), min(ratios), max(ratios))


def report(turns: Sequence[Turn], workers: int) -> Iterator[str]:
    """The lines of the report."""
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
        yield f"{name}: fit with merged rows takes {_text(ratio)} the graph's, {holds} what is asked, {ASKED}."
        yield f"{name}: fit with equal rows apart takes {_text(ratio_of(of_apart, of_merged))} those with merged rows."


def _text(ratio: Ratio) -> str:
    return f"{ratio.median:.3f} times ({ratio.least:.3f} to {ratio.most:.3f})"
