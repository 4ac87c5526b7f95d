"""Proves that row numbers are distinct because they derive from ids that the forward pass deduplicated.

One process has each deduplicated id once over the global batch, while two workers may each have it. An op preserves
this fact if it maps distinct ids to distinct ids, which then identify equal rows of several workers. An op that may map
distinct ids to equal numbers preserves it with its input ids as the key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from parallax.graph.ops import ELEMENTWISE
from parallax.graph.view import GraphView, node_of, split_tensor

_KEEPS_IDS = (
    *("Identity", "Reshape", "Cast", "ExpandDims", "Squeeze", "StopGradient", "PreventGradient", "Snapshot"),
    *("Switch", "RefSwitch"),
)
"""The result has the elements of the first input, all of them and in their order (row-major); a Cast of ids is assumed
to be lossless, as an id that does not fit would be outside its table; in a branch that is taken a Switch loses none.
"""

_ONE_TO_ONE = ("Neg", "Add", "AddV2", "Sub", "BitwiseXor", "Invert")
"""With one operand that is equal on all workers and a scalar, distinct integers give distinct results (they wrap around
and do not saturate)."""
_UNIQUE = ("Unique", "UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2")


class SameRows(NamedTuple):
    """The tensor that identifies equal rows among row numbers.

    Attributes:
        key: the tensor whose elements identify rows, of the same length and order; empty where the numbers themselves
            do.
        merged: the op that deduplicated the ids.
    """

    key: str
    merged: str


class DistinctIds:
    """Finds out why row numbers are distinct.

    Args:
        view: the graph.
        is_equal: whether a tensor is equal on all workers.
    """

    def __init__(self, view: GraphView, is_equal: Callable[[str], bool]) -> None:
        self._view = view
        self._is_equal = is_equal

    def of(self, tensor: str) -> SameRows | None:
        """The tensor that identifies equal rows; None where nothing is proven."""
        merged = self._distinct(tensor)
        if merged:
            return SameRows("", merged)
        before = self.source(tensor)
        merged = self._distinct(before) if before != root(self._view, tensor) else ""
        return SameRows(before, merged) if merged else None

    def any_before(self, tensor: str) -> str:
        """An op that deduplicates ids of the batch and from which a tensor is computed; empty where there is none."""
        needed = self._view.ancestors([node_of(tensor)])
        found = (n for n in needed if self._view.op(n) in _UNIQUE and not self._is_equal(f"{n}:0"))
        return min(found, default="")

    def _distinct(self, tensor: str) -> str:
        """The op that deduplicated the ids whose elements these are, dealt out or renumbered one to one; or empty."""
        tensor = self._before_reshape(tensor)
        node, number = split_tensor(tensor)
        op, inputs = self._view.op(node), self._view.inputs(node)
        if op in _UNIQUE or merged_ids(self._view, tensor):
            return node if number == (1 if merged_ids(self._view, tensor) else 0) else ""
        if op in _ONE_TO_ONE or op == "Mul":
            moving = [t for t in inputs if not self._is_equal(t)]
            fixed = [t for t in inputs if self._is_equal(t)]
            if len(moving) != 1 or not all(self._is_scalar(t) for t in fixed):
                return ""
            return self._distinct(moving[0]) if op != "Mul" or all(self._is_nonzero(t) for t in fixed) else ""
        return self._distinct_parts(inputs[0], inputs[1]) if op == "DynamicPartition" else ""

    def _distinct_parts(self, values: str, parts: str) -> str:
        """Like `_distinct`, within each part: the values are distinct anyway, or x // n within the parts of x % n.

        Also for parts of a table by ranges, as embedding_lookup numbers them: with q rows in a part and one more in the
        first e, x % (q + 1) in the parts below e and (x - e) % q in the others.
        """
        if self._distinct(values):
            return self._distinct(values)
        values, parts = self._before_reshape(values), self._before_reshape(parts)
        view, value, part = self._view, node_of(values), node_of(parts)
        if view.op(value) == "FloorDiv" and view.op(part) == "FloorMod":
            return self._distinct(view.inputs(value)[0]) if self._same(view.inputs(value), view.inputs(part)) else ""
        if view.op(value) not in ("Select", "SelectV2") or view.op(part) != "Maximum":
            return ""
        condition, below, above = view.inputs(value)
        first, second = view.inputs(part)
        less = node_of(condition)
        if view.op(less) != "Less" or not self._same((view.inputs(less)[0],), (parts,)):
            return ""
        pairs = ((below, first), (above, second))
        if not all(self._divides(rest, quotient) for rest, quotient in pairs):
            return ""
        x, more = view.inputs(node_of(below))
        shifted, rows = view.inputs(node_of(above))
        less_e = node_of(shifted)
        shifts = view.op(less_e) == "Sub" and self._same((x, view.inputs(less)[1]), view.inputs(less_e))
        return self._distinct(x) if shifts and self._is_one_more(more, rows) else ""

    def _divides(self, rest: str, quotient: str) -> bool:
        """Whether two tensors are remainder and quotient of one division."""
        a, b = node_of(rest), node_of(quotient)
        return (self._view.op(a), self._view.op(b)) == ("FloorMod", "FloorDiv") and self._same(
            self._view.inputs(a), self._view.inputs(b)
        )

    def _is_one_more(self, more: str, rows: str) -> bool:
        node = node_of(more)
        if self._view.op(node) not in ("AddV2", "Add"):
            a, b = self._view.constant(more), self._view.constant(rows)
            return a is not None and b is not None and int(a) == int(b) + 1
        first, second = self._view.inputs(node)
        one = self._view.constant(second)
        return one is not None and int(one) == 1 and self._same((first,), (rows,))

    def _same(self, first: tuple[str, ...], second: tuple[str, ...]) -> bool:
        """Whether tensors are pairwise the same: one tensor, or equal ops of equal inputs."""
        return len(first) == len(second) and all(self._same_tensor(a, b) for a, b in zip(first, second, strict=True))

    def _same_tensor(self, one: str, other: str) -> bool:
        one, other = self._before_reshape(one), self._before_reshape(other)
        if one == other:
            return True
        a, b = self._view.constant(one), self._view.constant(other)
        if a is not None and b is not None:
            return bool((a == b).all())
        (x, m), (y, n) = split_tensor(one), split_tensor(other)
        computed = ("AddV2", "Add", "Sub", "FloorDiv", "FloorMod")
        if m != n or self._view.op(x) != self._view.op(y) or self._view.op(x) not in computed:
            return False
        return self._same(self._view.inputs(x), self._view.inputs(y))

    def source(self, tensor: str) -> str:
        """The only tensor that differs between workers among those from which a tensor is computed elementwise."""
        while True:
            tensor = self._before_reshape(tensor)
            node = node_of(tensor)
            inputs = self._view.inputs(node)
            scalars = all(self._is_scalar(t) for t in inputs if self._is_equal(t))
            if self._view.op(node) not in ELEMENTWISE or not scalars:
                return tensor
            moving = {self.source(t) for t in inputs if not self._is_equal(t)}
            if len(moving) != 1:
                return tensor
            (tensor,) = moving

    def _is_scalar(self, tensor: str) -> bool:
        return self._view.shape(tensor) == ()

    def _is_nonzero(self, tensor: str) -> bool:
        value = self._view.constant(tensor)
        return value is not None and bool((value != 0).all())

    def _before_reshape(self, tensor: str) -> str:
        return root(self._view, tensor)


def root(view: GraphView, tensor: str) -> str:
    """The tensor behind ops that preserve ids and their order."""
    while True:
        node, number = split_tensor(tensor)
        if view.op(node) in _KEEPS_IDS:
            tensor = view.inputs(node)[0]
        elif view.op(node) == "IdentityN":
            tensor = view.inputs(node)[number]
        else:
            return tensor


def merged_ids(view: GraphView, tensor: str) -> str:
    """The ids that a gradient of SparseSegmentSum and similar returns deduplicated and sorted; else empty."""
    node, number = split_tensor(tensor)
    grad = view.op(node).startswith("SparseSegment") and view.op(node).endswith("GradV2") and number == 1
    return root(view, view.inputs(node)[1]) if grad else ""
