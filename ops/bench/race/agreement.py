"""Whether systems that must compute the same do: their losses, step by step.

All synchronous systems apply the mean gradient of the same global batches to the same initial values, so they differ
only by the order in which float32 numbers are added up: over W workers, over equal rows, within a product. One sum of n
terms is off by at most n * 2**-24 relatively, in practice by its square root: with n around 10**4 for a gradient, 1e-5.
An error of a step is carried on by the next ones, and so grows about linearly as long as training is not chaotic. The
bound is therefore FIRST for the first steps and grows by PER_STEP with each. A wrong exchange (a worker left out, sums
for means, a lost push) changes the second loss by far more: by the effect of an update itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ops.bench.race.results import Ran

FIRST = 1e-4
PER_STEP = 1e-5


@dataclass(frozen=True, slots=True)
class Agreement:
    """How a system's losses compare with those of the first synchronous one.

    Attributes:
        system: its name.
        reference: the one it is compared with.
        steps: how many both have run.
        worst: the largest relative difference.
        at_step: where that is, from 0.
        holds: no difference is beyond the bound of its step.
    """

    system: str
    reference: str
    steps: int
    worst: float
    at_step: int
    holds: bool


def bound(step: int) -> float:
    """The relative difference that is allowed in a step, from 0."""
    return FIRST + PER_STEP * step


def agreements(runs: Sequence[Ran]) -> tuple[Agreement, ...]:
    """Of every synchronous system that has losses, against the first such one."""
    compared = [run for run in runs if run.synchronous and run.losses]
    return tuple(_agreement(run, compared[0]) for run in compared[1:])


def _agreement(run: Ran, reference: Ran) -> Agreement:
    pairs = list(zip(run.losses, reference.losses, strict=False))
    differences = [_relative(own, other) for own, other in pairs]
    at_step = max(range(len(pairs)), key=lambda step: differences[step])
    holds = all(difference <= bound(step) for step, difference in enumerate(differences))
    return Agreement(run.system, reference.system, len(pairs), differences[at_step], at_step, holds)


def _relative(own: float, other: float) -> float:
    """Infinite where one is no number."""
    if own == other:
        return 0.0
    difference = abs(own - other) / max(abs(own), abs(other))
    return difference if difference == difference else float("inf")
