"""Follows batches that a reshape folds behind a first axis of a fixed length, as `[2, -1, width]` makes two halves.

Which examples are in a part depends on the batch's length: a worker has the halves of its own batch, and one process
those of all workers'. As long as all parts are treated alike, nothing is made of that. Examples meet where one part is
taken alone, or what is in the same place of all parts is taken together.
"""

from __future__ import annotations

from parallax.analysis.propagation.axis_meets import is_real
from parallax.analysis.propagation.batch_axis import BatchAxes
from parallax.analysis.propagation.op_lists import FORWARD_ELEMENTWISE

_REDUCTIONS = ("Sum", "Mean", "Max", "Min", "Prod", "EuclideanNorm")
_TAKES_APART = {"Unpack": 0, "Split": 1, "SplitV": 0, "StridedSlice": 0}
"""By op which of its inputs is taken apart."""


class FoldedBatch:
    """What is followed through a graph, node by node in its order.

    Args:
        axes: how tensors lie along the batch.
    """

    def __init__(self, axes: BatchAxes) -> None:
        self._axes = axes
        self._folded = set[str]()

    def meets(self, node: str) -> bool:
        """Whether parts of the batch, which another length would make of other examples, are told apart."""
        view, op = self._axes.view, self._axes.view.op(node)
        inputs, outputs = view.inputs(node), view.outputs(node)
        if op == "Reshape" and self._folds(inputs[0], outputs[0]):
            self._folded.update(outputs)
        if not self._folded & set(inputs):
            return False
        if op in FORWARD_ELEMENTWISE and all(t in self._folded or self._axes.fits(t) for t in inputs):
            self._folded.update(outputs)
        elif op in _REDUCTIONS:
            return self._reduces_parts(node)
        elif op in _TAKES_APART and inputs[_TAKES_APART[op]] in self._folded:
            return self._takes_part(node)
        return False

    def _folds(self, tensor: str, out: str) -> bool:
        """Whether a reshape gives real numbers of a batch a first axis that is shorter than the batch, and fixed."""
        before, after = self._axes.shape(tensor), self._axes.shape(out)
        if self._axes.of(tensor) != 0 or not before or not after or not is_real(self._axes.view, tensor):
            return False
        count, length = after[0], before[0]
        is_fixed = count is not None and count > 1 and len(after) > 1
        return is_fixed and (after[1] is None if length is None else length % (count or 1) == 0 and count != length)

    def _reduces_parts(self, node: str) -> bool:
        """Whether what is in the same place of all parts is taken together; what is left is folded still."""
        view, (tensor, over) = self._axes.view, self._axes.view.inputs(node)
        shape, places = self._axes.shape(tensor) or (), self._axes.constant(over)
        gone = {int(place) % len(shape) for place in places.reshape(-1)} if places is not None and shape else set()
        if 0 in gone:
            return 1 not in gone
        if gone and 1 not in gone:
            self._folded.update(view.outputs(node))
        return False

    def _takes_part(self, node: str) -> bool:
        """Whether a node takes the parts apart, and not what is in them."""
        axes, view, attr = self._axes, self._axes.view, self._axes.view.nodes[node].attr
        if view.op(node) == "Unpack":
            return int(attr["axis"].i) % len(axes.shape(view.inputs(node)[0]) or (0,)) == 0
        if view.op(node) != "StridedSlice":
            place = axes.constant(view.inputs(node)[0 if view.op(node) == "Split" else 2])
            return place is not None and int(place) == 0
        if (attr["ellipsis_mask"].i | attr["new_axis_mask"].i) & 1:
            return False
        return not (attr["begin_mask"].i & attr["end_mask"].i & 1)
