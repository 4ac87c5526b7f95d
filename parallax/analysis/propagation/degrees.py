"""Says how what is computed of gradients grows with them: by which power of a factor that they all have.

A mean over the batch has gradients by single examples that are smaller the more examples there are: each worker has
those of one process times the number of workers. Their squares have that factor twice, their directions not at all.
Ops that keep no such power, as a hyperbolic tangent or the distance to a constant, bend what they take.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set

import numpy as np

from parallax.analysis.propagation.axis_blocks import is_length
from parallax.analysis.propagation.axis_meets import reduces_batch
from parallax.analysis.propagation.batch_axis import BatchAxes
from parallax.analysis.propagation.lengths import is_other_length
from parallax.graph.view import GraphView, Shape, split_tensor

KEEPS = frozenset(
    """
    Identity StopGradient PreventGradient Snapshot CheckNumerics EnsureShape Cast Neg Abs Relu LeakyRelu Reshape Squeeze
    ExpandDims Transpose Tile BroadcastTo StridedSlice Slice GatherV2 Gather GatherNd Sum Mean Max Min EuclideanNorm Pad
    ReverseV2 Roll Cumsum Unpack SplitV Real Imag Conj ComplexAbs MatrixDiagPartV3 MatrixDiagV3 UnsortedSegmentSum Print
    """.split()
)
"""A first input that is some times as large, by a positive factor, gives a result that is as many times as large."""
PRODUCTS = frozenset(
    """
    Mul MulNoNan MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3 Einsum Conv2D Conv2DBackpropInput DepthwiseConv2dNative
    """.split()
)
"""The result is a sum of products of one element of each input."""
DIVISIONS = ("RealDiv", "Div", "DivNoNan")
ADDS = frozenset(
    "Add AddV2 Sub AddN Maximum Minimum Pack ConcatV2 Complex Select SelectV2 BiasAdd SquaredDifference".split()
)
"""Inputs that all are some times as large give a result that is, or its square."""
COMPARES = ("Greater", "GreaterEqual", "Less", "LessEqual", "Equal", "NotEqual")
"""Inputs that all are some times as large give the same result."""
POWERS = {
    **{"Square": 2.0, "L2Loss": 2.0, "Sqrt": 0.5, "Rsqrt": -0.5, "Reciprocal": -1.0, "Inv": -1.0},
    **dict.fromkeys(("Sign", "ArgMax", "ArgMin", "IsFinite", "IsNan", "IsInf"), 0.0),
}
"""By op the power of a positive factor of the input that the result has."""
OF_SHAPE = ("Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike")
_LIKE = ("ZerosLike", "OnesLike")
_COPIES = ("Identity", "Cast")
_SMALL = 1e-3
"""A number that keeps from dividing by zero is none that is meant."""


def degree_of(axes: BatchAxes, node: str, degree: Callable[[str], float]) -> float | None:
    """The degree of what a node gives of inputs of such degrees; None where it bends them."""
    op, inputs = axes.view.op(node), axes.view.inputs(node)
    if op in KEEPS or op == "Split":
        return degree(inputs[op == "Split"])
    if op in PRODUCTS:
        return sum(degree(t) for t in inputs)
    if op in DIVISIONS:
        return degree(inputs[0]) - degree(inputs[1])
    if op in POWERS:
        return POWERS[op] * degree(inputs[0])
    if op == "Pow":
        power = axes.constant(inputs[1])
        return None if power is None or power.size != 1 else float(power.reshape(-1)[0]) * degree(inputs[0])
    if op not in ADDS and op not in COMPARES:
        return None
    given = inputs[1:] if op.startswith("Select") else inputs[:-1] if op == "ConcatV2" else inputs
    found = {degree(t) for t in given if not _is_guard(axes, t)}
    if len(found) > 1 or (op.startswith("Select") and degree(inputs[0])):
        return None
    each = found.pop() if found else 0.0
    return 0.0 if op in COMPARES else each * (1 + (op == "SquaredDifference"))


def _is_guard(axes: BatchAxes, tensor: str) -> bool:
    """Whether a tensor is there so that nothing is divided by zero, or is zero itself."""
    value = axes.constant(tensor)
    if value is None:
        return axes.view.op(split_tensor(tensor)[0]) in _LIKE
    return value.dtype.kind in "iuf" and float(np.max(np.abs(value), initial=0.0)) <= _SMALL


def fixed_means(axes: BatchAxes, made: Set[str]) -> dict[Shape, set[float]]:
    """By the shape of batches of a fixed length the numbers by which means over them divide."""
    view, found = axes.view, dict[Shape, set[float]]()
    for node in view.nodes:
        if view.op(node) != "Mean" or node in made:
            continue
        before, after = (axes.shape(t) for t in (view.inputs(node)[0], f"{node}:0"))
        if before is None or after is None or None in before or not before or not reduces_batch(axes, node):
            continue
        if not _product(after):  # a mean of nothing, as of no columns, divides nothing
            continue
        found.setdefault(before, set()).add(_product(before) / _product(after))
    return found


def divides_by_length(axes: BatchAxes, node: str, fixed: dict[Shape, set[float]]) -> bool:
    """Whether autodiff divides by how many examples a batch has, or by what is a sum over them.

    To multiply by the inverse of the former is to divide by it.

    Args:
        axes: how tensors lie along the batch.
        node: what autodiff made.
        fixed: what `fixed_means` gives.
    """
    view = axes.view
    if view.op(node) == "Mul":
        return any(view.shape(t) == () and _is_inverse_length(axes, t) for t in view.inputs(node))
    if view.op(node) not in DIVISIONS:
        return False
    divisor = view.inputs(node)[1]
    if view.shape(divisor) != ():
        return False
    value = axes.constant(f"{_behind(view, divisor)}:0")
    if value is not None:
        return float(value) in fixed.get(view.shape(f"{node}:0"), ())
    if axes.fits(divisor):
        return False
    taken = _taken_lengths(axes, divisor)
    return not is_other_length(axes, divisor) if taken is None else taken


def _is_inverse_length(axes: BatchAxes, tensor: str) -> bool:
    """Whether a scalar is what all workers have, divided by how many examples a batch has."""
    view, node = axes.view, _behind(axes.view, tensor)
    if view.op(node) in ("Reciprocal", "Inv"):
        return is_length(axes, view.inputs(node)[0])
    return view.op(node) in DIVISIONS and axes.fits(view.inputs(node)[0]) and is_length(axes, view.inputs(node)[1])


def _taken_lengths(axes: BatchAxes, tensor: str) -> bool | None:
    """Whether a mean's gradient is divided by lengths of which one is the batch's; None where it is none of a mean.

    It reads the shape of what the mean was taken of, takes the lengths along the axes that are gone, and multiplies
    them. Where it is not known how that lies along the batch, it is taken to be along the first axis.
    """
    view, product = axes.view, _behind(axes.view, tensor)
    taken = _behind(view, view.inputs(product)[0]) if view.op(product) == "Prod" else ""
    shape = _behind(view, view.inputs(taken)[0]) if taken and view.op(taken) == "GatherV2" else ""
    if not shape or view.op(shape) != "Shape":
        return None
    of, places = view.inputs(shape)[0], _behind(view, view.inputs(taken)[1])
    while view.op(places) in ("FloorMod", "AddV2"):
        places = _behind(view, view.inputs(places)[0])
    gone, before = axes.constant(f"{places}:0"), axes.shape(of)
    if gone is None or not before:
        return None
    return max(axes.of(of) or 0, 0) in {int(place) % len(before) for place in gone.reshape(-1)}


def _behind(view: GraphView, tensor: str) -> str:
    node = split_tensor(tensor)[0]
    while view.op(node) in _COPIES:
        node = split_tensor(view.inputs(node)[0])[0]
    return node


def _product(lengths: Sequence[int | None]) -> float:
    return float(np.prod([length or 0 for length in lengths]))
