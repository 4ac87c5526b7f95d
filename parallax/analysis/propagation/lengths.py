"""Finds losses that take the length of a batch as a number, and not only to divide a sum over the batch by it.

A worker has the length of its own batch, and the one process that of all. What takes it is followed by how it grows
with the batch: a sum over the batch and the batch's length grow alike, and a sum divided by the length does not grow,
so that each worker may take its own. Where a length is bent, meets what grows otherwise, or is left over in a loss, all
take the sum of the workers' lengths (denominators.py). What numbers the examples, or counts distinct values of a batch,
is nothing that workers could put together, and is told.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import NamedTuple

import numpy as np

from parallax.analysis.propagation.axis_blocks import is_length
from parallax.analysis.propagation.axis_einsum import sums_over_batch
from parallax.analysis.propagation.axis_meets import is_real, reduces_batch
from parallax.analysis.propagation.axis_part import AxisPart
from parallax.analysis.propagation.batch_axis import BatchAxes
from parallax.analysis.propagation.op_lists import FORWARD_ELEMENTWISE
from parallax.analysis.propagation.walk import Walk
from parallax.graph.view import GraphView, split_tensor

_DISTINCT = ("Unique", "UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2")
_KEEPS = (
    *(
        "Identity",
        "StopGradient",
        "Cast",
        "Reshape",
        "Squeeze",
        "ExpandDims",
        "Neg",
        "Abs",
        "Transpose",
        "StridedSlice",
    ),
    *("PreventGradient", "CheckNumerics", "Snapshot", "Relu", "Tile", "Fill", "BroadcastTo", "GatherV2", "IdentityN"),
)
"""The result grows as the first input that is a value does."""
_LOOKS_UP = ("GatherV2", "Gather", "ResourceGather", "OneHot")
_SHAPES = {"Reshape": (1,), "Tile": (1,), "Fill": (0,), "BroadcastTo": (1,), "StridedSlice": (1, 2, 3)}
"""By op the inputs that say a shape or a place; of GatherV2 the numbers and the axis do."""
_CHOICES = (
    *("Greater", "GreaterEqual", "Less", "LessEqual", "Equal", "NotEqual", "FloorDiv", "FloorMod", "TruncateDiv"),
    *("TruncateMod", "BitwiseAnd", "RightShift"),
)
"""Of a length and another number they give what the one process may have otherwise."""
_DECIDED = {
    **dict.fromkeys(("If", "StatelessIf", "Case", "StatelessCase"), 0),
    **dict.fromkeys(("Switch", "RefSwitch"), 1),
}
"""By op which of its inputs says what branch is taken."""
_PRODUCTS = ("Mul", "MulNoNan", "MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
_DIVISIONS = ("RealDiv", "Div", "DivNoNan")
_SUMS = ("Add", "AddV2", "Sub", "AddN", "Pack", "ConcatV2", "Maximum", "Minimum", "Select", "SelectV2")
_ADDS = ("Add", "AddV2", "Sub", "AddN", "Neg", "Identity", "Cast", "Reshape", "Squeeze")
_POWERS = {"Square": 2.0, "Sqrt": 0.5, "Rsqrt": -0.5, "Reciprocal": -1.0, "Inv": -1.0}
_SMALL = 1e-3
"""A number that is added so that nothing is divided by zero is none that is meant."""


class Growth(NamedTuple):
    """With what power of the batch's length a tensor grows, as the number of workers does: by sums, and by lengths."""

    sums: float = 0.0
    lengths: float = 0.0


_NONE = Growth()


class Lengths:
    """How what losses are computed of grows with the batch, in a finished walk.

    Args:
        walk: the walk.
        axes: how tensors lie along the batch.
        made: the nodes that autodiff made.
        losses: what is trained.
        divided: edges by which sums are divided by what is added up over the workers.

    Attributes:
        bent: nodes that take a length as a number.
        numbers: nodes that make numbers of the examples' places, or of how many values are distinct.
        summed: losses that are sums over the batch.
    """

    def __init__(
        self, walk: Walk, axes: BatchAxes, made: Set[str], losses: Sequence[str], divided: Set[tuple[str, int]]
    ) -> None:
        axes = with_lengths(axes)
        self._walk, self._view, self._axes, self._divided = walk, walk.view, axes, divided
        self._grown: dict[str, Growth | None] = {}
        self._needed = self._view.ancestors([split_tensor(loss)[0] for loss in losses])
        self._places, self._mixed, self._spread = set[str](), set[str](), False
        self._added = set[str]()
        terms = self._terms(losses)
        self.bent: list[str] = []
        self.numbers: list[str] = []
        for node in self._view.topological_order():
            if node in self._needed:
                found = None if node in made else self._of_node(node)
                self._grown.update(dict.fromkeys(self._view.outputs(node), found))
        self.numbers += sorted(self._decided())
        left = {split_tensor(term)[0]: self._growth(term) for term in terms}
        lengths = {split_tensor(tensor)[0] for tensor, growth in self._grown.items() if _is_length_alone(growth)}
        grown = [node for node, growth in left.items() if growth not in (None, _NONE, Growth(1.0, 0.0))]
        self.bent += [node for node in grown if self._view.ancestors([node]) & lengths]
        self.summed = [node for node, growth in left.items() if growth == Growth(1.0, 0.0)]

    def _terms(self, losses: Sequence[str]) -> list[str]:
        """What losses are added up of."""
        found, waiting = dict[str, None](), list(losses)
        while waiting:
            tensor = waiting.pop()
            op, inputs = self._view.op(split_tensor(tensor)[0]), self._view.inputs(split_tensor(tensor)[0])
            if op in _ADDS:
                self._added.add(split_tensor(tensor)[0])
                waiting += inputs
            else:
                found[tensor] = None
        return list(found)

    def values(self) -> frozenset[str]:
        """The lengths, as real numbers, of which what is bent is computed; none where a sum is not divided at once.

        A sum that is divided by one is found as one that is divided by a sum.
        """
        if self._spread:
            return frozenset()
        behind = self._view.ancestors(self.bent) if self.bent else set()
        return frozenset(
            f"{node}:0"
            for node in sorted(behind & self._needed)
            if self._view.op(node) == "Cast" and self._view.shape(f"{node}:0") == ()
            if self._grown.get(f"{node}:0") == Growth(0.0, 1.0) and not self._walk.known.branches[node]
            if is_real(self._view, f"{node}:0") and not is_real(self._view, self._view.inputs(node)[0])
        )

    def is_length(self, tensor: str) -> bool:
        """Whether a tensor is so many times the batch's length, along whatever axes it counts."""
        return self._grown.get(tensor) == Growth(0.0, 1.0)

    def is_mean(self, division: str) -> bool:
        """Whether a division is that of a sum over the batch by its length, or so many times as much."""
        grown = [self._growth(t) for t in self._view.inputs(division)]
        return division in self._needed and grown == [Growth(1.0, 0.0), Growth(0.0, 1.0)]

    def _of_node(self, node: str) -> Growth | None:
        """How the first output of a node grows; None where it is not followed."""
        view, op, inputs = self._view, self._view.op(node), self._view.inputs(node)
        tensor = f"{node}:0"
        if not inputs or tensor not in self._walk.states:
            return None
        if is_length(self._axes, tensor):
            return Growth(0.0, 1.0)
        if op in ("Size", "StridedSlice", "Prod") and (read := self._read_shape(node)):
            return self._of_shape(node, read)
        if self._is_place(node):
            return None
        if op == "Prod" and view.op(packed := split_tensor(inputs[0])[0]) == "Pack":
            return self._of_factors(view.inputs(packed))
        if op in ("Sum", "Mean"):
            return self._of_reduction(node)
        if op == "Einsum" and view.shape(tensor) == () and sums_over_batch(self._axes, node):
            return self._of_products(node)
        if op in _DIVISIONS or op in _PRODUCTS:
            is_summed = op not in _DIVISIONS and op not in FORWARD_ELEMENTWISE and self._axes.of(tensor) is None
            return None if is_summed else self._of_product(node)  # of examples, as far as can be seen
        if op in _SUMS:
            return self._of_sum(node)
        found = [self._growth(t) for slot, t in enumerate(inputs) if slot not in _SHAPES.get(op, ())]
        if op == "Cast" and inputs[0] in self._mixed:
            self.bent += [node] if is_real(view, tensor) else []
            self._mixed.update([] if is_real(view, tensor) else [tensor])
            return None
        if op in _KEEPS:
            return found[0]
        if op in _POWERS and found[0] is not None:
            return Growth(found[0].sums * _POWERS[op], found[0].lengths * _POWERS[op])
        if op in FORWARD_ELEMENTWISE and any(_is_length_alone(one) for one in found) and is_real(view, tensor):
            self.bent.append(node)
            return None
        is_followed = op in FORWARD_ELEMENTWISE or self._axes.of(tensor) is not None
        return _NONE if is_followed and all(one == _NONE for one in found) else None

    def _growth(self, tensor: str) -> Growth | None:
        if self._axes.fits(tensor) or not self._view.inputs(split_tensor(tensor)[0]):
            return _NONE
        return self._grown.get(tensor)

    def _read_shape(self, node: str) -> str:
        """The tensor whose shape a node reads; empty where it reads none."""
        view, tensor = self._view, self._view.inputs(node)[0]
        if view.op(node) == "Size":
            return tensor
        while view.op(split_tensor(tensor)[0]) in ("Identity", "Cast"):
            tensor = view.inputs(split_tensor(tensor)[0])[0]
        giver = split_tensor(tensor)[0]
        return view.inputs(giver)[0] if view.op(giver) == "Shape" else ""

    def _of_shape(self, node: str, read: str) -> Growth | None:
        """A length of what is read, or the product of several."""
        axis = self._axes.of(read)
        if axis is None:
            self._places.update(self._view.outputs(node) if self._is_distinct(read) else ())
            return _NONE if self._axes.fits(read) else None
        if self._view.op(node) != "StridedSlice":
            return Growth(0.0, 1.0)
        return _NONE if is_other_length(self._axes, f"{node}:0") else None

    def _is_distinct(self, tensor: str) -> bool:
        """Whether a tensor is as long as a batch has distinct values."""
        node, number = split_tensor(tensor)
        while self._view.op(node) in (*_KEEPS, *FORWARD_ELEMENTWISE) and self._view.inputs(node):
            slot = 1 if self._view.op(node) == "GatherV2" else 0
            node, number = split_tensor(self._view.inputs(node)[slot])
        return self._view.op(node) in _DISTINCT and number != 1

    def _is_place(self, node: str) -> bool:
        """Whether a node gives whole numbers of examples' places or of distinct values, or real ones made of them."""
        view, op, inputs, outputs = self._view, self._view.op(node), self._view.inputs(node), self._view.outputs(node)
        counted = op == "Range" and any(_is_length_alone(self._growth(t)) for t in inputs)
        follows = op in FORWARD_ELEMENTWISE or op in (*_KEEPS, *_LOOKS_UP, *_SUMS)
        values = {t for slot, t in enumerate(inputs) if slot not in _SHAPES.get(op, ())}
        is_chosen = op in _CHOICES and self._is_choice(inputs)
        if not counted and not is_chosen and not (follows and (self._places | self._mixed) & values):
            return False
        if op in _LOOKS_UP and not self._is_looked_up(op, inputs):
            return False
        if is_real(view, outputs[0]):
            self.numbers.append(node)
        else:
            self._places.update(outputs)
        return True

    def _is_choice(self, inputs: tuple[str, ...]) -> bool:
        """Whether a whole number or a truth is made of a length and of something that does not grow as it does."""
        found = [self._growth(t) for t in inputs if not (self._places | self._mixed) & {t}]
        return any(_is_length_alone(one) for one in found) and any(not _is_length_alone(one) for one in found)

    def _decided(self) -> list[str]:
        """The nodes whose branches are chosen by what is made of a length."""
        view, found = self._view, self._places | self._mixed
        return [
            n for n in self._needed if (slot := _DECIDED.get(view.op(n))) is not None and view.inputs(n)[slot] in found
        ]

    def _is_looked_up(self, op: str, inputs: tuple[str, ...]) -> bool:
        """Whether examples' places are taken, or what all workers have is taken by them."""
        if op == "OneHot" or inputs[0] in self._places:
            return inputs[0] in self._places
        return inputs[1] in self._places and self._axes.fits(inputs[0])

    def _of_reduction(self, node: str) -> Growth | None:
        summed = self._view.inputs(node)[0]
        found = self._growth(summed)
        if found is None or self._view.op(node) == "Mean" or self._view.shape(summed) == ():
            return found
        axis, shape = self._axes.of(summed), self._axes.shape(summed)
        if axis is None or not shape:
            return found if self._axes.fits(summed) else None
        if shape[max(axis, 0)] is not None:  # a constant may be the batch's length
            return None
        if not reduces_batch(self._axes, node):
            return found if self._axes.of(f"{node}:0") is not None else None
        return self._left(node, Growth(found.sums + 1.0, found.lengths), is_division=False)

    def _of_product(self, node: str) -> Growth | None:
        first, second = (self._growth(t) for t in self._view.inputs(node)[:2])
        if first is None or second is None:
            return None
        is_division = self._view.op(node) in _DIVISIONS
        if is_division and (node, 1) in self._divided:
            return Growth(first.sums - 1.0, first.lengths)
        sign = -1.0 if is_division else 1.0
        found = Growth(first.sums + sign * second.sums, first.lengths + sign * second.lengths)
        return self._left(node, found, is_division and self._view.shape(f"{node}:0") == ())

    def _of_factors(self, tensors: Sequence[str]) -> Growth | None:
        """The product of numbers."""
        found = [self._growth(tensor) for tensor in tensors]
        known = [one for one in found if one is not None]
        whole = Growth(sum(one.sums for one in known), sum(one.lengths for one in known))
        return whole if len(known) == len(found) else None

    def _of_products(self, node: str) -> Growth | None:
        """A sum over the batch of products."""
        factors = [self._growth(t) for t in self._view.inputs(node)]
        sums = [one.sums for one in factors if one is not None and one.lengths == 0.0]
        return Growth(1.0 + sum(sums), 0.0) if len(sums) == len(factors) else None

    def _left(self, node: str, found: Growth, is_division: bool) -> Growth:
        """What is left where a sum is divided by the length."""
        both = min(found.sums, -found.lengths)
        if both <= 0.0:
            return found
        self._spread |= not is_division
        return Growth(found.sums - both, found.lengths + both)

    def _of_sum(self, node: str) -> Growth | None:
        """What is added up must grow alike; a small number that keeps from dividing by zero is left out."""
        inputs = self._view.inputs(node)
        inputs = inputs[1:] if self._view.op(node).startswith("Select") else inputs
        found = {self._growth(t) for t in inputs if not self._is_guard(node, t)}
        is_mixed = bool(self._mixed & set(inputs))
        if not is_mixed and (len(found) < 2 or None in found):
            return next(iter(found)) if len(found) == 1 else None
        if is_mixed or any(_is_length_alone(one) for one in found):
            if is_real(self._view, f"{node}:0"):
                self.bent += [] if node in self._added else [node]
            else:
                self._mixed.update(self._view.outputs(node))
        return None

    def _is_guard(self, node: str, tensor: str) -> bool:
        value = self._axes.constant(tensor)
        most = 1.0 if self._view.op(node) == "Maximum" else _SMALL
        return value is not None and value.dtype.kind in "iuf" and float(np.max(np.abs(value), initial=0.0)) <= most


def with_lengths(axes: BatchAxes) -> BatchAxes:
    """The answers where examples that are multiplied with or divided by the batch's length stay what they are.

    That the one process has another length is told, or mended, by `Lengths`.
    """
    view = axes.view
    found: dict[str, AxisPart | None] = {}
    for node in view.nodes:
        if view.op(node) in ("Mul", *_DIVISIONS) and axes.of(f"{node}:0") is None:
            rows = [t for t in view.inputs(node) if axes.of(t) is not None]
            others = [t for t in view.inputs(node) if t not in rows]
            if len(rows) == 1 and len(others) == 1 and _is_of_length(axes, others[0]):
                found[f"{node}:0"] = axes.part(rows[0])
    return axes.supposing(found) if found else axes


def _is_of_length(axes: BatchAxes, tensor: str) -> bool:
    """Whether a scalar is the batch's length, or by it and by what all workers have."""
    view, node = axes.view, split_tensor(tensor)[0]
    if axes.shape(tensor) != ():
        return False
    if is_length(axes, tensor):
        return True
    own = [t for t in view.inputs(node) if not axes.fits(t)]
    return view.op(node) in ("Cast", "Identity", "Mul", *_DIVISIONS) and len(own) == 1 and _is_of_length(axes, own[0])


def is_other_length(axes: BatchAxes, tensor: str) -> bool:
    """Whether a scalar is a length along another axis than the batch, of which the one process has the same."""
    view, node = axes.view, split_tensor(tensor)[0]
    if view.op(node) in ("Cast", "Identity", "Mul", "Maximum", "AddV2"):
        own = [t for t in view.inputs(node) if not axes.fits(t)]
        return bool(own) and all(is_other_length(axes, t) for t in own)
    if view.op(node) != "StridedSlice" or view.shape(f"{node}:0") != ():
        return False
    shape, begin = split_tensor(view.source(view.inputs(node)[0]))[0], axes.constant(view.inputs(node)[1])
    axis = axes.of(view.inputs(shape)[0]) if view.op(shape) == "Shape" else None
    rank = len(axes.shape(view.inputs(shape)[0]) or ()) if axis is not None else 0
    return bool(rank) and begin is not None and int(begin.reshape(-1)[0]) % rank != max(axis or 0, 0)


def _is_length_alone(growth: Growth | None) -> bool:
    return growth is not None and growth.lengths != 0.0 and growth.sums == 0.0


def notes_of(view: GraphView, bent: Sequence[str], numbers: Sequence[str], summed: Sequence[str]) -> tuple[str, ...]:
    """What the plan says of nodes that take a length as a number, of numbers of examples, and of sums."""
    notes = [
        f"the loss {node} grows with the length of the batch: gradients are the mean over the workers, so one process "
        "would take steps as many times as large as there are workers. Use reduce_mean"
        for node in summed
    ]
    notes += [
        f"{view.op(node)} {node!r} takes the length of each worker's batch as a number: one process would take that of "
        "all workers' batches"
        for node in bent
    ]
    notes += [
        f"{view.op(node)} {node!r} makes numbers of, or chooses by, the length of a worker's batch, how many distinct "
        "values it has, or the places of its examples: one process would take those of all workers' batches"
        for node in numbers
    ]
    return tuple(notes)
