"""The arithmetic of a meeting: how the centre and an island move, given the sums over all islands."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from parallax.base.types import Array
from parallax.plans.island_plan import IslandPlan

Total = Callable[[Array], None]
"""Replaces an array by its sum over the islands."""

FlatValues = dict[str, Array]
"""Element type -> the values of all variables of that type, one after the other."""


@dataclass(frozen=True, slots=True)
class Packing:
    """The places of variables in one array for each element type.

    Attributes:
        kinds: by variable, its shape and its element type.
    """

    kinds: tuple[tuple[tuple[int, ...], str], ...]

    def zeros(self) -> FlatValues:
        """An array of zeros for each element type."""
        sizes = dict.fromkeys((dtype for _, dtype in self.kinds), 0)
        for shape, dtype in self.kinds:
            sizes[dtype] += math.prod(shape)
        return {dtype: np.zeros(size, dtype) for dtype, size in sizes.items()}

    def pack(self, values: Sequence[Array]) -> FlatValues:
        """A copy of the values of the variables."""
        found = self.zeros()
        for view, value in zip(self.views(found), values, strict=True):
            view[...] = value
        return found

    def views(self, flat: FlatValues) -> list[Array]:
        """The value of each variable in these arrays."""
        found, places = [], dict.fromkeys(flat, 0)
        for shape, dtype in self.kinds:
            begin = places[dtype]
            places[dtype] = begin + math.prod(shape)
            found.append(flat[dtype][begin : places[dtype]].reshape(shape))
        return found


class Centre:
    """The centre of some variables, which the leader of each island has.

    Attributes:
        values: of the centre.
        momentum: of the outer optimizer; empty without.

    Args:
        terms: how islands meet.
        packing: of the variables.
    """

    def __init__(self, terms: IslandPlan, packing: Packing) -> None:
        self._terms = terms
        self.values = packing.zeros()
        self.momentum = packing.zeros() if terms.outer_momentum > 0 and not terms.simultaneous else {}

    def meet(self, local: FlatValues, total: Total) -> None:
        """Moves the centre and the island.

        Args:
            local: the island's values, which change.
            total: sums over the islands; called once for each element type, in one order on all.
        """
        for dtype, centre in self.values.items():
            self._meet(centre, local[dtype], self.momentum.get(dtype), total)

    def _meet(self, centre: Array, local: Array, momentum: Array | None, total: Total) -> None:
        terms = self._terms
        if terms.simultaneous:
            step = terms.pull * (local - centre)
            local -= step
            total(step)
            centre += step
            return
        away = centre - local
        total(away)
        away /= terms.count
        if momentum is not None:
            momentum *= terms.outer_momentum
            momentum += away
            away += terms.outer_momentum * momentum
        centre -= terms.outer_rate * away
        if terms.joins:
            local[:] = centre
        else:
            local -= terms.pull * (local - centre)


def averaging(terms: IslandPlan) -> IslandPlan:
    """The terms by which variables without a gradient meet: each island takes the mean."""
    return replace(terms, outer_rate=1.0, outer_momentum=0.0, pull=1.0, simultaneous=False)
