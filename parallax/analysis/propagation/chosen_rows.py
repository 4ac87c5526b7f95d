"""Finds rows that a mask chooses of a batch, of which workers have unequally many, and means over them.

A choice is proven where rows that lie along the batch are gathered by the numbers of a mask that does. What is made of
chosen rows row by row is as long as they are; a mean of it is over as many elements as each worker has.
"""

from __future__ import annotations

from collections.abc import Set
from functools import cached_property

from parallax.analysis.propagation.axis_part import MIXED, AxisPart
from parallax.analysis.propagation.batch_axis import BatchAxes
from parallax.analysis.propagation.sparse_batches import has_every_row, is_by_row, is_of_every_row
from parallax.analysis.propagation.walk import Walk
from parallax.graph.batches import are_elements
from parallax.graph.view import Edge, split_tensor
from parallax.plans.losses import Selected

PASSES = ("Identity", "StopGradient", "Reshape", "Cast", "Squeeze", "ExpandDims")
"""Elements stay what they are, in their order."""
_GATHERS = ("GatherV2", "Gather", "GatherNd")
_OF_SHAPES = "Shape Size Const Cast FloorDiv FloorMod Prod GatherV2 AddV2 Maximum Reshape Range Fill".split()
"""What autodiff counts the elements of a mean with."""


class ChosenRows:
    """What masks choose in a finished walk.

    Args:
        walk: the walk.
        made: the nodes that autodiff made.
        forward: the nodes of what is differentiated, and of all else that is not autodiff's.
    """

    def __init__(self, walk: Walk, made: Set[str], forward: Set[str]) -> None:
        self._walk = walk
        self._made = made
        self._forward = forward
        self._joined = BatchAxes(walk.view, walk.states)
        # A mask leaves workers unequally many rows, of which no mean over the workers may be taken.
        supposed: dict[str, AxisPart | None] = {**dict.fromkeys(self.uneven), **dict.fromkeys(self._rows, AxisPart(0))}
        self.axes = BatchAxes(walk.view, walk.states, self._joined).supposing(supposed)

    @cached_property
    def uneven(self) -> dict[str, str]:
        """Rows of the batch that a mask along it chooses, with the node that says which; and ragged rows' elements."""
        view = self._walk.view
        found = {f"{node}:0": node for node in view.nodes if are_elements(view.nodes[node])}
        for gather in sorted(self._forward):
            if view.op(gather) not in _GATHERS or self._joined.of(view.inputs(gather)[0]) not in (0, MIXED):
                continue
            if view.inputs(gather)[2:] and view.constant(view.inputs(gather)[2]) != 0:
                continue
            if place := self.place(view.inputs(gather)[1]):
                found[f"{gather}:0"] = place
        return found

    @cached_property
    def _rows(self) -> list[str]:
        """The tensors that have a row for each example again, of elements that are added up or put beside others."""
        view, found = self._walk.view, list[str]()
        for node in sorted(self._forward) if self.uneven else ():
            for tensor in view.outputs(node):
                is_row = is_of_every_row(view, node, split_tensor(tensor)[1]) or is_by_row(view, node)
                if (is_row or has_every_row(view, node)) and self.with_chosen.of(tensor) == 0:
                    found.append(tensor)
        return found

    @cached_property
    def with_chosen(self) -> BatchAxes:
        """The axes where rows that a mask chooses are joined too: a sum need not know how many each worker has."""
        chosen = {tensor: AxisPart(0) for tensor in self.uneven}
        return BatchAxes(self._walk.view, self._walk.states, self._joined).supposing(chosen)

    def place(self, tensor: str) -> str:
        """The node that gives numbers of the elements that a mask along the batch chooses; empty for other numbers."""
        view, node = self._walk.view, split_tensor(tensor)[0]
        while view.op(node) in PASSES or (view.op(node) == "StridedSlice" and self._is_column(node)):
            node = split_tensor(view.inputs(node)[0])[0]
        is_place = view.op(node) == "Where" and self._joined.of(view.inputs(node)[0]) in (0, MIXED)
        return node if is_place else ""

    def _is_column(self, node: str) -> bool:
        """Whether a cut takes all rows of a matrix of one column."""
        view, attr = self._walk.view, self._walk.view.nodes[node].attr
        shape, masks = view.shape(view.inputs(node)[0]), (attr["begin_mask"].i & attr["end_mask"].i)
        taken = not (attr["new_axis_mask"].i | attr["ellipsis_mask"].i) and attr["shrink_axis_mask"].i == 2
        return shape is not None and shape[1:] == (1,) and bool(masks & 1) and taken

    def counts(self, node: str) -> bool:
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
        is_uneven = bool(counted) and self.axes.of(counted) is None
        return is_uneven and (self.with_chosen.of(counted) == 0 or bool(self.place(counted)))

    def mean(self, node: str) -> tuple[Selected | None, bool]:
        """A mean over all that a mask of the batch has chosen, or that is made of it row by row; and whether it may be.

        The mean comes with where autodiff divides by the number of its elements; nowhere, where it does not go back
        through it. Where what is averaged is made of chosen rows in a way that is not followed, it may be over as many
        elements as they are. Where two choices meet, each worker has as many of both.
        """
        view = self._walk.view
        values = view.inputs(node)[0]
        shape = view.shape(values)
        is_fixed = shape is not None and None not in shape
        if view.shape(f"{node}:0") != () or is_fixed or not self.uneven or self.axes.of(values) is not None:
            return None, False
        assumed = {tensor: AxisPart(0) for tensor in self._chosen_for(values)}
        counted = self._counted_by(values) if assumed else ()
        if not assumed or BatchAxes(view, self._walk.states).supposing(assumed).of(values) is None:
            return None, bool(counted)
        return Selected(node, values, min(assumed), counted), False

    def _chosen_for(self, values: str) -> set[str]:
        """The chosen rows that a tensor is made of, row by row; a scalar is not, nor what they are added up to."""
        view, found, seen = self._walk.view, set[str](), set[str]()
        waiting = [values]
        while waiting:
            tensor = waiting.pop()
            node, number = split_tensor(tensor)
            if tensor in seen or view.shape(tensor) == ():
                continue
            seen.add(tensor)
            if tensor in self._rows or has_every_row(view, node) or is_of_every_row(view, node, number):
                continue
            if tensor in self.uneven:
                found.add(tensor)
            waiting += view.inputs(node)
        return found

    def _counted_by(self, values: str) -> tuple[Edge, ...]:
        """Where autodiff divides by the number of elements of a tensor."""
        view, found = self._walk.view, []
        for node in sorted(self._made):
            if node not in view.nodes or view.op(node) != "RealDiv":
                continue
            needed = view.ancestors([split_tensor(view.inputs(node)[1])[0]]) & self._made
            shapes = {view.source(view.inputs(n)[0]) for n in needed if view.op(n) == "Shape"}
            if shapes == {view.source(values)} and all(view.op(n) in _OF_SHAPES for n in needed):
                found.append(Edge(node, 1))
        return tuple(found)
