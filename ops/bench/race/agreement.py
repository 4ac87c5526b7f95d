"""Checks that synchronous systems compute equal losses, step by step.

All synchronous systems apply the mean gradient of the same global batches to the same initial values, so they differ
only by the order in which float32 numbers are added up: over W workers, over equal rows, within a product. The relative
error of a sum of n terms is at most n * 2**-24, in practice sqrt(n) * 2**-24: for a gradient with n around 10**4, 1e-5.
Later steps inherit the error of a step, so it grows about linearly as long as training is not chaotic. The bound is
therefore FIRST for the first step and grows by PER_STEP with each. A wrong exchange (a worker left out, sums for means,
a lost push) changes the second loss by far more: by the effect of an update itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ops.bench.race.results import Ran

FIRST = 1e-4
PER_STEP = 1e-5


@dataclass(frozen=True, slots=True)
class Agreement:
    """The comparison of a system's losses with those of the first synchronous system.

    Attributes:
        system: name of the system.
        reference: name of the system it is compared with.
        steps: number of steps that both have run.
        worst: the largest relative difference.
        at_step: the step of that difference, from 0.
        holds: whether every difference is within the bound of its step.
    """

    system: str
    reference: str
    steps: int
    worst: float
    at_step: int
    holds: bool


def bound(step: int) -> float:
    """Returns the largest allowed relative difference in a step, counted from 0."""
    return FIRST + PER_STEP * step


def agreements(runs: Sequence[Ran]) -> tuple[Agreement, ...]:
    """Compares every synchronous system that has losses with the first such system."""
    compared = [run for run in runs if run.synchronous and run.losses]
    return tuple(_agreement(run, compared[0]) for run in compared[1:])


def _agreement(run: Ran, reference: Ran) -> Agreement:
    pairs = list(zip(run.losses, reference.losses, strict=False))
    differences = [_relative(own, other) for own, other in pairs]
    at_step = max(range(len(pairs)), key=lambda step: differences[step])
    holds = all(difference <= bound(step) for step, difference in enumerate(differences))
    return Agreement(run.system, reference.system, len(pairs), differences[at_step], at_step, holds)


def _relative(own: float, other: float) -> float:
    """Returns the relative difference; infinite if one of the numbers is NaN."""
    if own == other:
        return 0.0
    difference = abs(own - other) / max(abs(own), abs(other))
    return difference if difference == difference else float("inf")
