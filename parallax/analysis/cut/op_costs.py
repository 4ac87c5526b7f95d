"""What the nodes of a forward pass cost beside each other: multiplications of products and convolutions, else elements.

Lengths that the graph leaves open, as that of the batch, count as 1, so a cost is an example's.
"""

from __future__ import annotations

from parallax.graph.cut.graph_to_cut import elements_of
from parallax.graph.view import GraphView

OPS_PER_BYTE = 4.0
"""How many of these operations take as long as a byte between stages, where nothing is measured: 5 Gflop/s of a core
beside a link of 10 Gbit/s."""
_PRODUCTS = ("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")


def cost_of(view: GraphView, node: str) -> float:
    """What a node costs."""
    made = sum(elements_of(view.shape(tensor)) for tensor in view.outputs(node))
    op = view.op(node)
    if op in _PRODUCTS:
        return 2.0 * made * _length_of_sum(view, node)
    if op.startswith(("Conv2D", "Conv3D", "DepthwiseConv2d")) and "Backprop" not in op:
        kernel = view.shape(view.inputs(node)[1]) or ()
        return 2.0 * made * elements_of(kernel[:-2] if op.startswith("Depthwise") else kernel[:-1])
    return float(made)


def _length_of_sum(view: GraphView, node: str) -> int:
    """The length that a product sums over."""
    shape = view.shape(view.inputs(node)[0])
    is_turned = view.flag(node, "transpose_a") or view.flag(node, "adj_x")
    return (shape[-2 if is_turned else -1] or 1) if shape else 1
