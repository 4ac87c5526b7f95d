"""Follows what a worker's own batch makes of whole numbers, and rows that are put beside those of a batch.

The largest label, whether any example is positive, how often an id occurs: whole numbers and truth values are harmless
as long as only shapes, loops and masks up to a length take them. Real numbers that are made of them are of a worker's
own batch, and so is a mean along an axis that is as long as such a number says, as columns for all labels up to the
largest are. Rows that a batch does not have, put before or behind it, are once in the one process, and once in each
worker: a mean over all of them is another one.
"""

from __future__ import annotations

from parallax.analysis.propagation.axis_meets import is_bool, is_real, reduces_batch
from parallax.analysis.propagation.axis_part import MIXED
from parallax.analysis.propagation.batch_axis import BatchAxes
from parallax.analysis.propagation.op_lists import FORWARD_ELEMENTWISE
from parallax.graph.view import split_tensor

_EXTREMES = ("Max", "Min", "Prod", "All", "Any", "ArgMax", "ArgMin")
_COUNTS = ("Bincount", "DenseBincount")
_ADDS_BY_PLACE = ("UnsortedSegmentSum", "UnsortedSegmentMax", "UnsortedSegmentMin", "ScatterNd")
_KEEPS = ("Reshape", "Squeeze", "ExpandDims", "IdentityN")
_GATHERS = ("GatherV2", "Gather")
_OVER_LAST = ("Softmax", "LogSoftmax")
_PADS = ("Pad", "PadV2", "MirrorPad")


class OwnNumbers:
    """What is followed through a graph, node by node in its order.

    Args:
        axes: how tensors lie along the batch.
    """

    def __init__(self, axes: BatchAxes) -> None:
        self._axes = axes
        self._whole, self._longer = set[str](), set[str]()
        self._sized: dict[str, int] = {}

    def meets(self, node: str) -> bool:
        """Whether real numbers are made of a worker's own whole numbers, or a mean is over more than its batch."""
        view, op = self._axes.view, self._axes.view.op(node)
        inputs, outputs = view.inputs(node), view.outputs(node)
        taken = self._whole & set(inputs[:1] if op in _GATHERS else inputs)
        is_compared = op in FORWARD_ELEMENTWISE and is_bool(view, outputs[0]) and not is_bool(view, inputs[0])
        follows = (op in FORWARD_ELEMENTWISE or op in _KEEPS or op in _GATHERS) and not is_compared
        if self._begins(node) or (taken and follows):
            if is_real(view, outputs[0]):
                return True
            self._whole.update(outputs)
        if place := self._place_of_own_length(node):
            self._sized[outputs[0]] = place
        if self._averages_own_length(node):
            return True
        if self._is_put_beside(node):
            self._longer.update(outputs)
        elif inputs and self._longer & set(inputs):
            if op == "Mean":
                over = self._axes.constant(inputs[1])
                return over is not None and 0 in over.reshape(-1)
            if op in FORWARD_ELEMENTWISE or (op == "MatMul" and inputs[0] in self._longer):
                self._longer.update(outputs)
        return False

    def _begins(self, node: str) -> bool:
        """Whether a node takes the whole numbers of several examples together."""
        axes, op, inputs = self._axes, self._axes.view.op(node), self._axes.view.inputs(node)
        if op in _EXTREMES:
            return not is_real(axes.view, inputs[0]) and reduces_batch(axes, node)
        if op in _COUNTS:
            return axes.of(f"{node}:0") is None and any(axes.of(t) in (0, MIXED) for t in inputs)
        return op in _ADDS_BY_PLACE and axes.of(inputs[0]) in (0, MIXED) and not is_real(axes.view, f"{node}:0")

    def _place_of_own_length(self, node: str) -> int:
        """Counted from the right, the axis of a result that is as long as a worker's own number says; 0 for none."""
        view, op, inputs = self._axes.view, self._axes.view.op(node), self._axes.view.inputs(node)
        if op == "OneHot":
            return int(inputs[1] in self._whole and view.nodes[node].attr["axis"].i == -1)
        if op == "Range":
            return int(inputs[1] in self._whole)
        if op == "Fill" and view.op(packed := split_tensor(inputs[0])[0]) == "Pack":
            lengths = view.inputs(packed)
            return next((len(lengths) - place for place, t in enumerate(lengths) if t in self._whole), 0)
        places = {self._sized[t] for t in inputs if t in self._sized}
        if len(places) != 1 or op not in FORWARD_ELEMENTWISE:
            return 0
        (place,) = places
        return place if all(t in self._sized or self._is_one_long(t, place) for t in inputs) else 0

    def _is_one_long(self, tensor: str, place: int) -> bool:
        """Whether a tensor is broadcast along an axis, counted from the right: one that it has may be a batch's."""
        shape = self._axes.shape(tensor)
        return shape is not None and (len(shape) < place or shape[-place] == 1)

    def _averages_own_length(self, node: str) -> bool:
        """Whether a mean or a softmax is over an axis that is as long as a worker's own number says."""
        op, inputs = self._axes.view.op(node), self._axes.view.inputs(node)
        place = self._sized.get(inputs[0], 0) if inputs else 0
        if not place or op in _OVER_LAST:
            return place == 1 and op in _OVER_LAST
        over, shape = self._axes.constant(inputs[1]) if op == "Mean" else None, self._axes.shape(inputs[0])
        return over is not None and bool(shape) and -place % len(shape or (0,)) in over.reshape(-1) % len(shape or (0,))

    def _is_put_beside(self, node: str) -> bool:
        """Whether rows that are no batch's are put before or behind those of a batch, along its first axis."""
        axes, op, inputs = self._axes, self._axes.view.op(node), self._axes.view.inputs(node)
        if op == "ConcatV2":
            place, pieces = axes.constant(inputs[-1]), inputs[:-1]
            joined = [axes.of(t) == 0 for t in pieces]
            if place is None or int(place) != 0 or all(joined) or not any(joined):
                return False
            return all(one or axes.fits(t) for one, t in zip(joined, pieces, strict=True))
        if op in _PADS and axes.of(inputs[0]) == 0:
            paddings = axes.constant(inputs[1])
            return paddings is not None and bool((paddings[0] != 0).any())
        return False
