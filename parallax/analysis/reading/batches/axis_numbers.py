"""Finds the constants that count or number axes, as in `tf.reduce_sum(x, [1, 2])`: a batch may have that many examples.

Such a constant is read as an axis, or as a position in the shape of a tensor, alone or after arithmetic.
"""

from __future__ import annotations

from collections.abc import Set

from parallax.graph.view import Edge, GraphView, node_of

_REDUCES = ("All", "Any", "ArgMax", "ArgMin", "EuclideanNorm", "Max", "Mean", "Min", "Prod", "Sum")
_AXIS_SLOT = {
    **dict.fromkeys((*_REDUCES, "Cumprod", "Cumsum", "ExpandDims", "ReverseV2", "Transpose"), 1),
    **dict.fromkeys(("GatherV2", "Roll", "SplitV"), 2),
    **dict.fromkeys(("Concat", "Split"), 0),
}
"""For ops, the input that is an axis, or lists axes."""
_INTEGERS = (3, 9)  # types.proto: int32, int64
_TAKES = ("Gather", "GatherV2", "Slice", "StridedSlice")
_SHAPES = ("Shape", "ShapeN")
_COPIES = (*_TAKES, "Cast", "ConcatV2", "Identity")
_ARITHMETIC = """
    Add AddV2 Cast ConcatV2 ExpandDims FloorMod GatherV2 Identity Mul Pack Range Reshape Select SelectV2 Slice
    StridedSlice Sub
    """.split()


class AxisNumbers:
    """The constants of one graph that count or number axes.

    Args:
        view: the graph.
        forward: the nodes whose reads count.
        shapes: constants that TensorFlow made of the shape of a tensor.
    """

    def __init__(self, view: GraphView, forward: Set[str], shapes: Set[str]) -> None:
        self._view, self._forward, self._shapes = view, forward, shapes
        self._known: dict[str, bool] = {}

    def find_all(self) -> frozenset[str]:
        """The constants."""
        constants = (node for node in self._view.nodes_of(["Const"]) if node in self._forward)
        return frozenset(node for node in constants if self._is_of_axes(f"{node}:0"))

    def _is_of_axes(self, tensor: str) -> bool:
        """Whether all ops that read a tensor take an axis from it, or a position in a shape."""
        if tensor not in self._known:
            self._known[tensor] = False  # what a loop carries is none
            edges = [edge for edge in self._view.consumers(tensor) if edge.node in self._forward]
            is_read = bool(edges) and self._view.dtype(tensor) in _INTEGERS
            self._known[tensor] = is_read and all(map(self._takes_axis, edges))
        return self._known[tensor]

    def _takes_axis(self, edge: Edge) -> bool:
        op, inputs = self._view.op(edge.node), self._view.inputs(edge.node)
        if edge.slot == _AXIS_SLOT.get(op) or (op == "ConcatV2" and edge.slot == len(inputs) - 1):
            return True
        if op in _TAKES and edge.slot > 0:
            return self._is_shape(inputs[0])
        return op in _ARITHMETIC and self._is_of_axes(f"{edge.node}:0")

    def _is_shape(self, tensor: str) -> bool:
        """Whether a vector has an entry for each axis of a tensor, or is a part of such a vector."""
        node = node_of(tensor)
        if self._view.op(node) in _SHAPES or node in self._shapes:
            return True
        return self._view.op(node) in _COPIES and self._is_shape(self._view.inputs(node)[0])
