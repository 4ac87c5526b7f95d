"""Finds losses that are divided by a sum over the batch, as means over a mask are, and has that sum be of all workers.

Each worker's loss is then its own sum divided by a W-th of the whole denominator. The mean of those over the workers
is the one process's loss, and so is the mean of their gradients, whatever part of the mask each worker has. A mean over
elements that a mask has chosen is such a division too; its denominator is the number of elements.

Proven are sums of what lies along the batch and has no gradient by a trained variable (batch_axis.py). Of any other
such division the plan notes what is assumed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from parallax.analysis.propagation import curved
from parallax.analysis.propagation.axis_part import MIXED, AxisPart
from parallax.analysis.propagation.batch_axis import BatchAxes
from parallax.analysis.propagation.op_lists import FORWARD_ELEMENTWISE
from parallax.analysis.propagation.states import SAME
from parallax.analysis.propagation.walk import Walk
from parallax.analysis.reading.gradients import autodiff_ops
from parallax.graph.batches import reported_values
from parallax.graph.view import Edge, split_tensor
from parallax.plans.losses import Divided, Selected
from parallax.plans.rewrites import AllReduce

_DIVISIONS = ("RealDiv", "Div", "DivNoNan")
_OVER_BATCH = ("Sum", "Mean")
_OF_SHAPES = "Shape Size Const Cast FloorDiv FloorMod Prod GatherV2 AddV2 Maximum Reshape Range Fill".split()
"""What autodiff counts the elements of a mean with."""
_READS_SHAPES = ("Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike")
_GATHERS = ("GatherV2", "Gather", "GatherNd")
_PASSES = ("Identity", "StopGradient", "Reshape", "Cast", "Squeeze", "ExpandDims")
_WITHOUT_GRADIENT = (
    *("Equal", "NotEqual", "Greater", "GreaterEqual", "Less", "LessEqual", "ApproximateEqual"),
    *("LogicalAnd", "LogicalOr", "LogicalNot", "IsNan", "IsInf", "IsFinite", "ArgMax", "ArgMin", "Where"),
    "StopGradient",
)
"""Ops through which no gradient goes, as what they give is of whole numbers or truth values, or is meant to stop it."""


@dataclass(frozen=True, slots=True)
class Denominators:
    """What losses are divided by.

    Attributes:
        sums: scalars that are sums over a worker's batch; the one process has the sum of all.
        divided: where what is computed of them divides.
        selected: means over chosen elements.
        unproven: (division, denominator) where a loss is divided by what else depends on the batch.
        unproven_means: means of which it cannot be seen whether they are over chosen elements.
        curved: means over the batch that a loss is a curved function of (curved.py).
        statistics: nodes that give means over a worker's own batch, which go back into each of its examples.
    """

    sums: frozenset[str] = frozenset()
    divided: tuple[Divided, ...] = ()
    selected: tuple[Selected, ...] = ()
    unproven: tuple[tuple[str, str], ...] = ()
    unproven_means: tuple[str, ...] = ()
    curved: frozenset[str] = frozenset()
    statistics: tuple[str, ...] = ()


def find_denominators(walk: Walk, before: Denominators) -> Denominators:
    """What a finished walk shows of losses' denominators; what was found `before` stays."""
    look = _DivisionRules(walk)
    sums, divided, selected = set(before.sums), list(before.divided), list(before.selected)
    unproven, unproven_means = [], []
    for node in walk.view.topological_order():
        if node not in look.forward:
            continue
        if walk.view.op(node) in _DIVISIONS:
            numerator, tensor = walk.view.inputs(node)
            known = any(tensor == one.tensor for one in divided) or walk.states[tensor].kind in ("same", "fed")
            if known or walk.view.shape(tensor) != () or not look.is_of_loss(node, numerator, tensor):
                continue
            by = [op for op in _OVER_BATCH if look.sums_behind(tensor, op) and look.is_over_batch(numerator, op)]
            if not by and look.is_of_size(numerator) and look.sums_behind(tensor, "Sum"):
                by = ["Sum"]  # as a mask is scaled by all elements over those that are left
            if not by:
                if not look.is_of_size(tensor):
                    unproven.append((node, tensor))
                continue
            found = look.sums_behind(tensor, by[0])
            sums |= found
            if by[0] == "Sum":
                divided.append(Divided(tensor, look.divided_by(tensor)))
            else:
                divided += [Divided(one, tuple(walk.view.consumers(one)), is_mean=True) for one in sorted(found)]
        elif walk.view.op(node) == "Mean" and not any(node == one.node for one in selected):
            mean, may_be_chosen = look.selected(node)
            if mean is not None:
                selected.append(mean)
            elif may_be_chosen:
                unproven_means.append(node)
    return Denominators(
        frozenset(sums),
        tuple(divided),
        tuple(selected),
        tuple(unproven),
        tuple(unproven_means),
        curved.find_curved(walk, look.made, look.axes, before.curved, sums),
        curved.find_statistics(walk, look.made, look.axes),
    )


def visit(walk: Walk, node: str) -> None:
    """Has the sum of all workers taken of a denominator."""
    for tensor in walk.view.outputs(node) if walk.assumed.denominators.sums else ():
        if tensor in walk.assumed.denominators.sums and walk.states[tensor] != SAME:
            walk.all_reduces.append(AllReduce(tensor, tuple(walk.view.consumers(tensor)), "sum"))
            walk.states[tensor] = SAME
    curved.visit(walk, node)


def notes_of(found: Denominators) -> tuple[str, ...]:
    """What the plan says of losses' denominators, a sentence each."""
    notes = [
        f"a loss is divided by {one.tensor}, which is added up over the workers: each worker's loss is its part times W"
        for one in found.divided
    ]
    notes += [
        f"{one.node} is a mean over chosen elements, and counts for as many as each worker has"
        for one in found.selected
    ]
    notes += [
        f"{node} divides a loss by {tensor}, which depends on each worker's batch: workers are taken to have it equal"
        for node, tensor in found.unproven
    ]
    notes += [
        f"{node} may be a mean over what each worker's batch chooses: workers are taken to have equally many elements"
        for node in found.unproven_means
    ]
    notes += [
        f"{t} is a mean over the batch that more is made of: the workers' mean is taken" for t in sorted(found.curved)
    ]
    if found.statistics:
        others = f" and {len(found.statistics) - 1} more" if found.statistics[1:] else ""
        notes.append(
            f"{found.statistics[0]}{others} computes statistics of the batch, which are each worker's own: one process "
            "would take those of all workers' batches"
        )
    return tuple(notes)


class _DivisionRules:
    """What divisions are judged by."""

    def __init__(self, walk: Walk) -> None:
        view = walk.view
        self._walk = walk
        self.made = autodiff_ops(walk.known.captured)
        self.forward = view.nodes.keys() - self.made - walk.known.initial
        self._joined = BatchAxes(view, walk.states)
        # A mask leaves workers unequally many rows, of which no mean over the workers may be taken.
        self.axes = BatchAxes(view, walk.states, self._joined).supposing(dict.fromkeys(self._uneven))

    def sums_behind(self, tensor: str, op: str) -> frozenset[str]:
        """The sums (or means) over the batch, without gradients, that make a scalar; empty where others do."""
        view, found = self._walk.view, set[str]()
        waiting = [tensor]
        while waiting:
            one = waiting.pop()
            node = split_tensor(one)[0]
            if self._walk.states[one].kind in ("same", "fed"):
                continue
            if (self._is_over(node, op) and not self._needs_variables(node)) or (op == "Sum" and self._counts(node)):
                found.add(one)
            elif view.shape(one) == () and (view.op(node) in FORWARD_ELEMENTWISE or view.op(node) in _PASSES):
                waiting += view.inputs(node)
            else:
                return frozenset()
        return frozenset(found)

    def is_over_batch(self, tensor: str, op: str) -> bool:
        """Whether a scalar is a sum (or mean) over the batch, times what all workers have, or several added up."""
        view = self._walk.view
        node = split_tensor(tensor)[0]
        while self._passes(node):
            node = split_tensor(self._own(node)[0])[0]
        if view.op(node) in ("AddN", "Add", "AddV2"):
            return all(self.is_over_batch(t, op) for t in view.inputs(node))
        return self._is_over(node, op)

    def _passes(self, node: str) -> bool:
        """Whether a scalar stays the sum that it was, times what all workers have."""
        view, op = self._walk.view, self._walk.view.op(node)
        if op == "Sum" and view.shape(view.inputs(node)[0]) == ():
            return True
        return op in _PASSES or (op == "Mul" and len(self._own(node)) == 1)

    def is_of_size(self, tensor: str) -> bool:
        """Whether a tensor tells of the batch its size alone; batches are taken to be equally large."""
        view, waiting, seen = self._walk.view, [tensor], set[str]()
        while waiting:
            one = waiting.pop()
            node = split_tensor(one)[0]
            if node in seen or self._walk.states[one].kind in ("same", "fed"):
                continue
            seen.add(node)
            if view.op(node) in _READS_SHAPES:
                if any(t in self._uneven or self._place(t) for t in view.inputs(node)):
                    return False
                continue
            if not view.inputs(node):
                return False
            waiting += view.inputs(node)
        return True

    def is_of_loss(self, division: str, numerator: str, tensor: str) -> bool:
        """Whether a loss is divided by a tensor, or what a loss's elements are multiplied with."""
        if self.is_differentiated(tensor) or division in self._reported:
            return True
        return division in self._walk.known.training and self.is_of_size(numerator)

    @cached_property
    def _reported(self) -> set[str]:
        """The nodes of which reported values are computed."""
        return self._walk.view.ancestors([split_tensor(t)[0] for t in reported_values(self._walk.view)])

    def is_differentiated(self, tensor: str) -> bool:
        """Whether autodiff went back through a division by a tensor: it divides by it too."""
        return any(edge.node in self.made for edge in self.divided_by(tensor))

    def divided_by(self, tensor: str) -> tuple[Edge, ...]:
        """The divisions by a tensor, those of autodiff too."""
        edges = self._walk.view.consumers(tensor)
        return tuple(e for e in edges if self._walk.view.op(e.node) in _DIVISIONS and e.slot == 1)

    def selected(self, node: str) -> tuple[Selected | None, bool]:
        """A mean over all that a mask of the batch has chosen, or that is made of it row by row; and whether it may be.

        The mean comes with where autodiff divides by the number of its elements. Where it is made of chosen rows in a
        way that is not followed, it may be over as many elements as they are.
        """
        view = self._walk.view
        values = view.inputs(node)[0]
        shape = view.shape(values)
        is_fixed = shape is not None and None not in shape
        if view.shape(f"{node}:0") != () or is_fixed or not self._chosen or self.axes.of(values) is not None:
            return None, False
        needed = view.ancestors([split_tensor(values)[0]])
        assumed = {tensor: AxisPart(0) for tensor in self._chosen if split_tensor(tensor)[0] in needed}
        counted = self._counted_by(values) if assumed else ()
        if not counted or BatchAxes(view, self._walk.states).supposing(assumed).of(values) is None:
            return None, bool(counted)
        return Selected(node, values, counted), False

    @cached_property
    def _chosen(self) -> tuple[str, ...]:
        """Rows of the batch that a mask chooses; where two choices meet, each worker has as many of both."""
        return tuple(self._uneven)

    @cached_property
    def _uneven(self) -> dict[str, str]:
        """Rows of the batch that a mask along it chooses, with the node that says which."""
        view, found = self._walk.view, dict[str, str]()
        for gather in sorted(self.forward):
            if view.op(gather) not in _GATHERS or self._joined.of(view.inputs(gather)[0]) not in (0, MIXED):
                continue
            if view.inputs(gather)[2:] and view.constant(view.inputs(gather)[2]) != 0:
                continue
            if place := self._place(view.inputs(gather)[1]):
                found[f"{gather}:0"] = place
        return found

    def _place(self, tensor: str) -> str:
        """The node that gives numbers of the elements that a mask along the batch chooses; empty for other numbers."""
        view, node = self._walk.view, split_tensor(tensor)[0]
        while view.op(node) in _PASSES or (view.op(node) == "StridedSlice" and self._is_column(node)):
            node = split_tensor(view.inputs(node)[0])[0]
        is_place = view.op(node) == "Where" and self._joined.of(view.inputs(node)[0]) in (0, MIXED)
        return node if is_place else ""

    def _is_column(self, node: str) -> bool:
        """Whether a cut takes all rows of a matrix of one column."""
        view, attr = self._walk.view, self._walk.view.nodes[node].attr
        shape, masks = view.shape(view.inputs(node)[0]), (attr["begin_mask"].i & attr["end_mask"].i)
        taken = not (attr["new_axis_mask"].i | attr["ellipsis_mask"].i) and attr["shrink_axis_mask"].i == 2
        return shape is not None and shape[1:] == (1,) and bool(masks & 1) and taken

    def _counted_by(self, values: str) -> tuple[Edge, ...]:
        """Where autodiff divides by the number of elements of a tensor."""
        view, found = self._walk.view, []
        for node in sorted(self.made):
            if node not in view.nodes or view.op(node) != "RealDiv":
                continue
            needed = view.ancestors([split_tensor(view.inputs(node)[1])[0]]) & self.made
            shapes = {view.inputs(n)[0] for n in needed if view.op(n) == "Shape"}
            if shapes == {values} and all(view.op(n) in _OF_SHAPES for n in needed):
                found.append(Edge(node, 1))
        return tuple(found)

    def _own(self, node: str) -> list[str]:
        """The inputs that differ between workers."""
        inputs = self._walk.view.inputs(node)
        return [t for t in inputs if self._walk.states[t].kind not in ("same", "fed")]

    def _is_over(self, node: str, op: str) -> bool:
        """Whether a node takes the sum (or mean) of what lies along the batch, or of its products with what does."""
        view = self._walk.view
        if view.op(node) != op or view.shape(f"{node}:0") != ():
            return False
        summed = view.inputs(node)[0]
        factors = view.inputs(split_tensor(summed)[0]) if view.op(split_tensor(summed)[0]) == "Mul" else ()
        axes = self._with_chosen if op == "Sum" else self.axes
        return any(axes.of(t) is not None for t in (summed, *factors))

    def _counts(self, node: str) -> bool:
        """Whether a node gives how many rows a mask of the batch has chosen."""
        view = self._walk.view
        if view.op(node) == "StridedSlice" and view.shape(f"{node}:0") == ():
            first = view.constant(view.inputs(node)[1])
            if first is None or first.reshape(-1)[0] != 0:
                return False
            node = split_tensor(view.inputs(node)[0])[0]
            counted = view.inputs(node)[0] if view.op(node) == "Shape" else ""
        else:
            counted = view.inputs(node)[0] if view.op(node) == "Size" else ""
        return bool(counted) and self.axes.of(counted) is None and self._with_chosen.of(counted) == 0

    @cached_property
    def _with_chosen(self) -> BatchAxes:
        """The axes where rows that a mask chooses are joined too: a sum need not know how many each worker has."""
        chosen = {tensor: AxisPart(0) for tensor in self._uneven}
        return BatchAxes(self._walk.view, self._walk.states, self._joined).supposing(chosen)

    def _needs_variables(self, node: str) -> bool:
        """Whether a node's values have gradients by trained variables, as far as ops tell.

        Of what only its shape is read they have none, and none of what is compared or chosen by.
        """
        view = self._walk.view
        waiting, seen = [node], {node}
        while waiting:
            one = waiting.pop()
            if one in self._walk.known.shared:
                return True
            if view.op(one) not in (*_READS_SHAPES, *_WITHOUT_GRADIENT):
                waiting += (new := {split_tensor(t)[0] for t in view.inputs(one)} - seen)
                seen |= new
        return False
