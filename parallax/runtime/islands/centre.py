"""The arithmetic of a meeting: what an island brings, and how the centre and the island move by the sum of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import tensorflow as tf

from parallax.base.types import Array
from parallax.plans.island_plan import IslandPlan

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

    def contribute(self, local: FlatValues) -> FlatValues:
        """The island's contribution to a meeting; all islands apply the same step from the sum of contributions.

        Args:
            local: the island's values; with `simultaneous` they move here.
        """
        found = {}
        for dtype, centre in self.values.items():
            if self._terms.simultaneous:
                found[dtype] = self._round(self._terms.pull * (local[dtype] - centre))
                local[dtype] -= found[dtype]
            else:
                found[dtype] = self._round(centre - local[dtype])
        return found

    def _round(self, values: Array) -> Array:
        """The values as they travel, in their own element type."""
        travels_as = tf.as_dtype(self._terms.travels_as(values.dtype.name)).as_numpy_dtype
        return values if travels_as == values.dtype else values.astype(travels_as).astype(values.dtype)

    def take(self, local: FlatValues, totals: FlatValues) -> None:
        """Moves the centre, and then the island.

        Args:
            local: the island's values, which change.
            totals: the sums of the islands' contributions; they change.
        """
        terms = self._terms
        for dtype, centre in self.values.items():
            away = self._round(totals[dtype])
            if terms.simultaneous:
                centre += away
                continue
            away /= terms.count
            if dtype in self.momentum:
                momentum = self.momentum[dtype]
                momentum *= terms.outer_momentum
                momentum += away
                away += terms.outer_momentum * momentum
            centre -= terms.outer_rate * away
            if terms.joins:
                local[dtype][:] = centre
            else:
                local[dtype] -= terms.pull * (local[dtype] - centre)


def averaging(terms: IslandPlan) -> IslandPlan:
    """The terms by which variables without a gradient meet: each island takes the mean."""
    return replace(terms, outer_rate=1.0, outer_momentum=0.0, pull=1.0, simultaneous=False)
