"""The optimization problem: the options of every variable, and the cost of a choice of them.

All choices of a small problem can be enumerated, with their predicted steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from parallax.analysis.routes.memory import Hosts
from parallax.analysis.timing.route_seconds import PHASES, Floats, Pricing, RouteOption
from parallax.analysis.timing.step_time import StepLoad, Totals, compute_phases, steps_of


@dataclass(frozen=True, slots=True)
class Problem:
    """The optimization problem.

    Attributes:
        names: of the variables, sorted.
        options: of each variable, at least one.
        pricing: the pricing by which they were made.
        load: the fixed part of a step.
        hosts: the hosts that limit memory, in the order of `RouteOption.memory`.
    """

    names: tuple[str, ...]
    options: tuple[tuple[RouteOption, ...], ...]
    pricing: Pricing
    load: StepLoad
    hosts: Hosts

    @property
    def columns(self) -> int:
        """The number of options of variables with a choice."""
        return sum(len(options) for options in self.options if len(options) > 1)

    def totals(self, picks: Sequence[int]) -> Totals:
        """The sum of the picked options."""
        sums = Totals(self.pricing)
        for options, pick in zip(self.options, picks, strict=True):
            sums.add(options[pick])
        return sums

    def step_seconds(self, picks: Sequence[int], slowness: float = 1.0) -> float:
        """The predicted step with the picked options."""
        return self.totals(picks).step_seconds(self.load, slowness)

    def fits(self, picks: Sequence[int]) -> bool:
        """Whether the picked options leave enough memory everywhere."""
        used_bytes = sum(
            (o[p].memory for o, p in zip(self.options, picks, strict=True)), np.zeros(len(self.hosts.limits))
        )
        return bool(np.all(used_bytes <= np.array(self.hosts.limits)))


def count_of(problem: Problem) -> int:
    """The number of choices."""
    return math.prod(len(options) for options in problem.options)


def best_of(problem: Problem, slowness: float) -> tuple[int, ...] | None:
    """The picks with the shortest step, the first of equal ones; None when nothing fits into memory."""
    steps = all_steps(problem, slowness)
    if not np.isfinite(steps).any():
        return None
    place = int(steps.argmin())
    return tuple(int(i) for i in np.unravel_index(place, tuple(len(options) for options in problem.options)))


def all_steps(problem: Problem, slowness: float) -> Floats:
    """The predicted step of every choice, the last variable's options fastest; infinite where memory is short."""
    pricing, names = (
        problem.pricing,
        dict.fromkeys(k for options in problem.options for o in options for k in o.charges),
    )
    loads = np.zeros((1, 2, len(PHASES), len(pricing.topology.ends)))
    waits = np.zeros((1, 2, len(PHASES), pricing.who))
    paid = np.zeros((1, len(names)), bool)
    used_bytes = np.zeros((1, len(problem.hosts.limits)))
    for options in problem.options:
        loads = _combine(loads, np.stack([o.extra_s + slowness * o.link for o in options]))
        waits = _combine(waits, np.stack([o.waits for o in options]))
        used_bytes = _combine(used_bytes, np.stack([o.memory for o in options]))
        pays = np.array([[key in o.charges for key in names] for o in options], bool).reshape(len(options), -1)
        paid = (paid[:, None] | pays[None]).reshape(len(paid) * len(options), len(names))
    for place, key in enumerate(names):
        waits = waits + paid[:, place, None, None, None] * pricing.charges[key]
    steps = steps_of(compute_phases(waits, loads), problem.load)
    return np.where((used_bytes <= np.array(problem.hosts.limits)).all(axis=1), steps, np.inf)


def _combine(so_far: Floats, of_options: Floats) -> Floats:
    combined: Floats = (so_far[:, None] + of_options[None]).reshape(len(so_far) * len(of_options), *so_far.shape[1:])
    return combined
