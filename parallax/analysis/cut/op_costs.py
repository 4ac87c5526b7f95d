"""Estimates the costs of a forward pass's nodes: floating-point operations, two for each multiply-add; else elements.

Lengths that the graph leaves open, such as the batch length, count as 1, so a cost is that of one example.
"""

from __future__ import annotations

from parallax.graph.cut.graph_to_cut import elements_of
from parallax.graph.view import GraphView

OPS_PER_S, BYTES_PER_S = 5e9, 1.25e9
"""The stated rates, where nothing is measured: 5 Gflop/s of a core and a link of 10 Gbit/s."""
_PRODUCTS = ("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")


def estimate_cost(view: GraphView, node: str) -> float:
    """The floating-point operations of a product or convolution, the elements of any other node's outputs."""
    made = sum(elements_of(view.shape(tensor)) for tensor in view.outputs(node))
    op = view.op(node)
    if op in _PRODUCTS:
        return 2.0 * made * _length_of_sum(view, node)
    if op.startswith(("Conv2D", "Conv3D", "DepthwiseConv2d")) and "Backprop" not in op:
        kernel = view.shape(view.inputs(node)[1]) or ()
        return 2.0 * made * elements_of(kernel[:-2] if op.startswith("Depthwise") else kernel[:-1])
    return float(made)


def _length_of_sum(view: GraphView, node: str) -> int:
    """The length over which a product sums."""
    shape = view.shape(view.inputs(node)[0])
    is_turned = view.flag(node, "transpose_a") or view.flag(node, "adj_x")
    return (shape[-2 if is_turned else -1] or 1) if shape else 1
