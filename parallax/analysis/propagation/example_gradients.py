"""Finds losses that take gradients as numbers: examples moved along their own, penalties for those of a mean.

A mean over the batch has smaller gradients by single examples the more examples there are (degrees.py). Where these are
added to examples, each worker moves its own farther than one process would; a penalty for their length is larger. The
sign of such a gradient, or its direction for each example by itself, does not depend on the length of the batch, and
nor does a gradient of a sum. Gradients by variables that are trained are all workers' where a loss takes them;
those by other tensors that all workers have are means over each worker's own batch, and a loss may take them by sums
alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from parallax.analysis.propagation.axis_blocks import is_length
from parallax.analysis.propagation.axis_meets import is_real, reduces_batch
from parallax.analysis.propagation.axis_part import AxisPart
from parallax.analysis.propagation.batch_axis import BatchAxes
from parallax.analysis.propagation.degrees import (
    DIVISIONS,
    KEEPS,
    OF_SHAPE,
    PRODUCTS,
    degree_of,
    divides_by_length,
    fixed_means,
)
from parallax.analysis.propagation.losses import trained_losses
from parallax.analysis.propagation.walk import Walk
from parallax.analysis.reading.gradients import autodiff_ops
from parallax.graph.view import split_tensor

_MOVES = ("Add", "AddV2", "Sub")
_BY_SIGN = ("Abs", "Relu", "LeakyRelu", "Max", "Min", "EuclideanNorm")
_STRAIGHT = KEEPS - frozenset(_BY_SIGN)
"""A sum of such results over the workers is the result of the sum."""
_DEALS = ("UnsortedSegmentSum", "SegmentSum")
_SUMS = ("Add", "AddV2", "Sub", "AddN", "Pack", "ConcatV2")


def notes_of(walk: Walk) -> tuple[str, ...]:
    """What the plan says where losses take gradients as numbers."""
    view, made = walk.view, autodiff_ops(walk.known.captured)
    losses = trained_losses(walk)
    needed = view.computed_of(split_tensor(loss)[0] for loss in losses)
    if not made & needed:
        return ()
    look = _Taken(walk, made & needed)
    for node in view.topological_order():
        if node in needed and view.inputs(node) and view.op(node) not in OF_SHAPE and (said := look.visit(node)):
            return (said,)
    return tuple(
        f"the loss {loss} is made of gradients of a mean over the batch by its examples, {_SMALLER}"
        for loss in losses
        if look.degree(loss)
    )


_SMALLER = "which are smaller the more examples there are: one process would take those of a mean over all workers'"


class _Taken:
    """Follows gradients from where autodiff delivers them to losses.

    Args:
        walk: finished.
        made: the nodes that autodiff made and losses need.
    """

    def __init__(self, walk: Walk, made: frozenset[str]) -> None:
        self._walk, self._view, self._made = walk, walk.view, made
        axes = BatchAxes(walk.view, walk.states)
        delivered = [
            (target, values, indices)
            for record in walk.known.captured.records
            for target, values, indices in record.gradients
            if split_tensor(values)[0] in made
        ]
        layouts = {values: AxisPart(axis) for target, values, _ in delivered if (axis := axes.of(target)) is not None}
        self._axes = axes.supposing(layouts)
        self._shared = {values for target, values, indices in delivered if indices is None and axes.fits(target)}
        self._fixed = fixed_means(axes, made)
        self._degrees: dict[str, float] = {}
        self._means = set[str]()

    def degree(self, tensor: str) -> float:
        """Of what power of the gradients of a mean by single examples a tensor is."""
        return self._degrees.get(tensor, 0.0)

    def visit(self, node: str) -> str:
        """What the plan says of a node, if anything; else what it gives is known afterwards."""
        inputs, outputs = self._view.inputs(node), self._view.outputs(node)
        if means := [t for slot, t in enumerate(inputs) if t in self._means and self._differs(node, slot)]:
            return self._take_means(node, means)
        is_divided = False
        if node in self._made:
            is_divided = divides_by_length(self._axes, node, self._fixed)
            degree: float | None = max(*map(self.degree, inputs), float(is_divided))
        elif any(self.degree(t) for t in inputs):
            degree = degree_of(self._axes, node, self._with_lengths)
            if degree is None:
                return self._bent(node)
            if self._adds_up_examples(node):
                degree -= 1.0
                self._means.update(outputs if degree == 0.0 else ())
        else:
            return ""
        own = [t for t in outputs if is_divided or self._walk.states[t].kind != "same"]
        self._means.update(t for t in own if t in self._shared)
        self._degrees.update({t: degree for t in own if degree and t not in self._shared})
        return ""

    def _adds_up_examples(self, node: str) -> bool:
        """Whether a node adds up over the batch; what it gives is then a mean, where the gradients are of one."""
        op, summed = self._view.op(node), self._view.inputs(node)[0]
        if op in _DEALS:
            return self._axes.of(f"{node}:0") is None and self.degree(summed) != 0.0
        return op in ("Sum", "L2Loss") and reduces_batch(self._axes, node)

    def _with_lengths(self, tensor: str) -> float:
        """The degree, where a batch's length is one: a worker's is smaller than one process's by the same factor."""
        return -1.0 if self._view.shape(tensor) == () and is_length(self._axes, tensor) else self.degree(tensor)

    def _bent(self, node: str) -> str:
        op, inputs = self._view.op(node), self._view.inputs(node)
        if op in _MOVES and any(self._axes.of(t) is not None for t in inputs if not self.degree(t)):
            return (
                f"{op} {node!r} adds to the examples of a batch what a mean over the batch has for gradients by them: "
                "each worker takes that over its own batch, and one process would take that over all workers' batches"
            )
        return f"{op} {node!r} takes gradients of a mean over the batch by its examples as numbers, {_SMALLER}"

    def _differs(self, node: str, slot: int) -> bool:
        """Whether a node takes what is each worker's own; of what variables are trained with it takes all workers'."""
        return self._walk.state_at(node, slot).kind != "same"

    def _take_means(self, node: str, means: Sequence[str]) -> str:
        """What becomes of gradients by what all workers have: what is added up of them stays a mean over the batch."""
        view, op, inputs = self._view, self._view.op(node), self._view.inputs(node)
        others = [t for slot, t in enumerate(inputs) if t not in means and self._differs(node, slot)]
        others = [t for t in others if not self._axes.fits(t)]
        if op in _SUMS:
            is_straight = not any(self.degree(t) or self._axes.of(t) is not None for t in others)
        elif op in PRODUCTS or op in DIVISIONS:
            is_straight = not others and len(means) == 1
            is_straight &= op not in DIVISIONS or inputs[1] not in means
        else:
            is_straight = not others and (op in _STRAIGHT or op == "Split" or node in self._made)
        if is_straight or not is_real(view, view.outputs(node)[0] if view.outputs(node) else inputs[0]):
            self._means.update(view.outputs(node))
            return ""
        return (
            f"{op} {node!r} makes more than sums of gradients that are means over each worker's own batch: one process "
            "would take those of means over all workers' batches"
        )
