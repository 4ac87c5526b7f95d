"""What is to be chosen: the options of every variable, and what a choice of them gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from parallax.analysis.routes.memory import Hosts
from parallax.analysis.timing.pricing import Pricing, RouteOption
from parallax.analysis.timing.step_time import Given, Totals


@dataclass(frozen=True, slots=True)
class Problem:
    """What is to be chosen.

    Attributes:
        names: of the variables, sorted.
        options: of each, at least one.
        pricing: what made them.
        given: what a step takes besides.
        hosts: that limit memory, in the order of `RouteOption.memory`.
    """

    names: tuple[str, ...]
    options: tuple[tuple[RouteOption, ...], ...]
    pricing: Pricing
    given: Given
    hosts: Hosts

    @property
    def columns(self) -> int:
        """How many options there are of variables that have a choice."""
        return sum(len(options) for options in self.options if len(options) > 1)

    def totals(self, picks: Sequence[int]) -> Totals:
        """The sum of the options picked."""
        found = Totals(self.pricing)
        for options, pick in zip(self.options, picks, strict=True):
            found.add(options[pick])
        return found

    def step_seconds(self, picks: Sequence[int], slowness: float = 1.0) -> float:
        """The predicted step with the options picked."""
        return self.totals(picks).step_seconds(self.given, slowness)

    def fits(self, picks: Sequence[int]) -> bool:
        """Whether the options picked leave enough memory everywhere."""
        taken = sum((o[p].memory for o, p in zip(self.options, picks, strict=True)), np.zeros(len(self.hosts.limits)))
        return bool(np.all(taken <= np.array(self.hosts.limits)))
