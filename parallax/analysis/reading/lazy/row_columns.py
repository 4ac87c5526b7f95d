"""Rows that are some columns of wider rows, as `row_sums.py` puts several functions of a gradient beside each other."""

from __future__ import annotations

from parallax.analysis.reading.lazy.group import source_of
from parallax.analysis.reading.lazy.handles import node_of
from parallax.graph.view import GraphView, split_tensor


def columns_of(view: GraphView, tensor: str) -> tuple[str, int, int] | None:
    """(the wider rows `[n, count * width]`, which columns these are, count); None where a tensor is no such rows."""
    tensor = source_of(view, tensor)
    if view.op(node_of(tensor)) == "Reshape":
        tensor = view.inputs(node_of(tensor))[0]
    node, number = split_tensor(tensor)
    if view.op(node) != "Split" or view.constant(view.inputs(node)[0]) != 1:
        return None
    return view.inputs(node)[1], number, view.nodes[node].attr["num_split"].i
