"""Computes norms of a densified sparse gradient from its rows.

A gradient of distinct rows is mostly zeros once it is dense; clipping sums its squares. The zeros add nothing, and
without such reductions no op needs the dense gradient. The sum may be rounded in another order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from parallax.analysis.reading.lazy.added_nodes import record_shapes
from parallax.analysis.reading.lazy.elementwise import PASSES
from parallax.analysis.reading.lazy.group import source_of
from parallax.analysis.reading.lazy.handles import input_name
from parallax.base.types import GraphDef
from parallax.graph.view import Edge, GraphView, Shape, node_of

_SUMS = ("Sum", "L2Loss")
_ONE_OPERAND = ("Square", "Abs", "Neg", "Sign", "Cast", *PASSES)
_SCALED = ("Mul", "RealDiv", "Div", "MulNoNan", "DivNoNan")


@dataclass(frozen=True, slots=True)
class RowNorms:
    """The replacements of a dense gradient by its rows.

    Attributes:
        instead: (node, input number) of a reduction -> its new input.
        copies: nodes on rows, by name: (the original node, its inputs).
    """

    instead: dict[Edge, str] = field(default_factory=dict)
    copies: dict[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)


def norms_by_row(view: GraphView, dense: list[str]) -> RowNorms:
    """The reductions of dense gradients that can be computed from their rows.

    Args:
        view: the graph.
        dense: UnsortedSegmentSums of gradients' rows into tables of zeros.
    """
    norms = RowNorms()
    for node in dense:
        values, indices = view.inputs(node)[:2]
        if view.op(node_of(source_of(view, indices))) in ("Unique", "UniqueV2"):
            _follow(view, f"{node}:0", values, norms)
    return norms


def _follow(view: GraphView, tensor: str, rows: str, norms: RowNorms) -> None:
    """Follows a tensor that is zero except for some rows to all nodes computed from it."""
    for edge in view.consumers(tensor):
        op = view.op(edge.node)
        if op in _SUMS and edge.slot == 0 and _is_single(view, f"{edge.node}:0"):
            norms.instead[edge] = rows
        elif _keeps_zeros(view, edge, tensor) and _leads_to_sum(view, edge.node):
            name = f"{edge.node}/of_rows"
            norms.copies[name] = (edge.node, tuple(rows if one == tensor else one for one in view.inputs(edge.node)))
            _follow(view, f"{edge.node}:0", name, norms)


def _keeps_zeros(view: GraphView, edge: Edge, tensor: str) -> bool:
    """Whether a node is elementwise and maps zero to zero."""
    op, inputs = view.op(edge.node), view.inputs(edge.node)
    if op in _ONE_OPERAND:
        return edge.slot == 0
    if op not in _SCALED:
        return False
    if all(one == tensor for one in inputs):
        return "Div" not in op
    return all(one == tensor or _is_single(view, one) for one in inputs) and (edge.slot == 0 or "Div" not in op)


def _leads_to_sum(view: GraphView, node: str) -> bool:
    """Whether a node's result is summed, possibly after further elementwise ops."""
    takers = [edge for tensor in view.outputs(node) for edge in view.consumers(tensor)]
    return any(
        (view.op(edge.node) in _SUMS and _is_single(view, f"{edge.node}:0"))
        or (_keeps_zeros(view, edge, f"{node}:0") and _leads_to_sum(view, edge.node))
        for edge in takers
    )


def _is_single(view: GraphView, tensor: str) -> bool:
    shape = view.shape(tensor)
    return shape is not None and all(length == 1 for length in shape)


def take_rows(out: GraphDef, view: GraphView, norms: RowNorms) -> None:
    """Modifies a copy of the graph: reductions read rows, from added nodes."""
    nodes = {node.name: node for node in out.node}
    shapes: dict[str, Shape] = {}
    for edge, tensor in norms.instead.items():
        nodes[edge.node].input[edge.slot] = input_name(tensor)
    for name, (like, inputs) in norms.copies.items():
        copy = out.node.add()
        copy.CopyFrom(view.nodes[like])
        copy.name = name
        shapes[name] = _shape_of_copy(view, shapes, inputs)
        record_shapes(copy, shapes[name])
        del copy.input[:]
        copy.input.extend([*map(input_name, inputs), *(f"^{wait}" for wait in view.controls(like))])


def _shape_of_copy(view: GraphView, shapes: Mapping[str, Shape], inputs: Sequence[str]) -> Shape:
    """The shape of a node on rows: the rows', as other inputs have one element; None where one has more axes."""
    input_shapes = [shapes[one] if one in shapes else view.shape(one) for one in inputs]
    rows = next(
        (shape for shape in input_shapes if shape is None or any(length != 1 for length in shape)), input_shapes[0]
    )
    return None if rows is None or any(len(shape or ()) > len(rows) for shape in input_shapes) else rows
