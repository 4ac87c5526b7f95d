"""Facts about a tensor: its layout, the lengths of its axes and, for small integer tensors, their values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from parallax.graph.lengths import ONE, Length
from parallax.plans.layouts import EmptyList, Layout, LengthValue, Partial, PerExample, Replicated, Sharded, ShardedAxis

REPLICATED, LENGTHS, SUM, COUNTED = Replicated(), LengthValue(), Partial("sum"), Partial("sum", is_counted=True)
BLANK = EmptyList()

Dims = tuple[Length, ...]
Value = Length | tuple[Length | None, ...]


@dataclass(frozen=True, slots=True)
class Fact:
    """The facts about one tensor of a step; about a list of tensors, those of their stack along a new first axis.

    Attributes:
        layout: its layout.
        dims: the lengths of its axes in the program of one process; None where its rank is unknown.
        value: for an integer scalar its value in the program of one process, for a vector the values; None where they
            are unknown. For a list the value of each of its tensors, where all have the same.
    """

    layout: Layout
    dims: Dims | None = None
    value: Value | None = None

    @property
    def rank(self) -> int | None:
        """The number of its axes."""
        return None if self.dims is None else len(self.dims)

    @property
    def is_same(self) -> bool:
        """Whether it is replicated."""
        return self.layout == REPLICATED

    @property
    def is_lengths(self) -> bool:
        """Whether it is computed from batch lengths alone."""
        return self.layout == LENGTHS

    @property
    def axis(self) -> int | None:
        """The axis along which it is sharded."""
        return self.layout.axis if isinstance(self.layout, Sharded) else None

    @property
    def part(self) -> ShardedAxis | None:
        """The sharding of that axis."""
        return self.layout.part if isinstance(self.layout, Sharded) else None

    @property
    def is_sum(self) -> bool:
        """Whether it is a partial sum."""
        return isinstance(self.layout, Partial) and self.layout.kind == "sum"

    @property
    def is_counted(self) -> bool:
        """Whether it is a partial sum to which workers without examples add nothing."""
        return self.layout == COUNTED

    def values(self) -> list[Length | None] | None:
        """The elements of a vector, or of a scalar, where they are known."""
        if self.value is None:
            return None
        return list(self.value) if isinstance(self.value, tuple) else [self.value]

    def complete_values(self) -> Dims | None:
        """The elements of a vector, or of a scalar, where all are known."""
        values = self.values()
        return None if values is None or None in values else tuple(one for one in values if one is not None)

    def numbers(self) -> list[int] | None:
        """The elements where all are integers."""
        values = self.values()
        if values is None:
            return None
        scalars = [one.number for one in values if one is not None]
        return [n for n in scalars if n is not None] if len(scalars) == len(values) and None not in scalars else None


@dataclass(frozen=True, slots=True)
class ExampleLoop:
    """A loop over the entries of a sharded axis, in which each worker iterates over its own entries.

    Attributes:
        part: the sharding of the axis.
        counters: head -> the number of iterations that it has.
        ends: head -> a counter's value after the last iteration, in the program of one process.
        sums: the heads of sums of the entries' terms.
        additions: the nodes that add the terms, and the ends of branches in which they, or nothing, are.
    """

    part: ShardedAxis
    counters: Mapping[str, PerExample]
    ends: Mapping[str, Length]
    sums: Set[str]
    additions: Set[str]


def shift_axis(layout: Layout, by: int) -> Layout:
    """The layout of a tensor with axes added, or removed, before the one along which it may be sharded."""
    return Sharded(layout.axis + by, layout.part) if isinstance(layout, Sharded) else layout


def find_limit(bounds: Sequence[Fact], masks: Mapping[str, int], entry: int) -> Length | None:
    """How many first entries of an axis a StridedSlice takes at most: a length that the graph computes.

    Args:
        bounds: the begins, ends and strides.
        masks: of the slice, by name.
        entry: of these, the one of the axis.
    """
    begin, end, stride = ((fact.values() or [])[entry : entry + 1] for fact in bounds)
    limit = end[0] if end and not masks["end"] >> entry & 1 else None
    is_first = bool(masks["begin"] >> entry & 1) or begin == [Length.of(0)]
    is_plain = is_first and stride == [ONE] and limit is not None and limit.number is None
    return limit if is_plain and limit is not None and all(factor > 0 for _, factor in limit.terms) else None
