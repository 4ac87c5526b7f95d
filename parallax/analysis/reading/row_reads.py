"""Has rows taken from a variable itself where a graph reads the variable whole and takes rows of that.

So Keras looks rows up, and a read of the whole is a copy of it once the variable was written by row. What waited for
the read, as a write does, then waits for the rows; a read that nobody takes is waited for no longer. The reads keep
their names, for fetches.
"""

from __future__ import annotations

from typing import Any

from tensorflow.core.framework import graph_pb2

from parallax.graph.view import Edge, GraphView, split_tensor, tensor_name
from parallax.types import GraphDef, NodeDef


def take_rows_of_variables(graph_def: GraphDef) -> Any:
    """A copy of the graph in which rows are taken of variables; the graph itself where none were read for that."""
    reads = {node.name for node in graph_def.node if node.op == "ReadVariableOp"}
    if not any(
        node.op == "GatherV2" and split_tensor(tensor_name(node.input[0]))[0] in reads for node in graph_def.node
    ):
        return graph_def
    view = GraphView(graph_def)
    instead: dict[str, list[str]] = {}
    for node in sorted(reads):
        gathers = _gathers(view, node)
        if gathers is not None:
            instead[node] = gathers
    if not instead:
        return graph_def
    read_by = {gather: read for read, gathers in instead.items() for gather in gathers}
    out = graph_pb2.GraphDef()
    out.CopyFrom(graph_def)
    for node in out.node:
        if node.name in read_by:
            _take_rows(node, view, read_by[node.name])
        _wait_instead(node, view, instead)
    return out


def _gathers(view: GraphView, read: str) -> list[str] | None:
    """The gathers of rows that alone take what a node reads; None where it is to stay as it is."""
    edges, waiting = view.consumers(f"{read}:0"), [n for n in view.users(read) if read in view.controls(n)]
    gathers = [edge.node for edge in edges]
    if not all(_is_row_gather(view, edge) for edge in edges) or not (gathers or waiting):
        return None
    before = view.ancestors(gathers) - {*gathers}
    return None if before & set(waiting) else gathers  # rows of what was there before a write


def _is_row_gather(view: GraphView, edge: Edge) -> bool:
    if view.op(edge.node) != "GatherV2" or edge.slot != 0 or view.nodes[edge.node].attr["batch_dims"].i:
        return False
    axis = view.constant(view.inputs(edge.node)[2])
    return axis is not None and int(axis) == 0


def _take_rows(node: NodeDef, view: GraphView, read: str) -> None:
    """A gather of what was read becomes a gather of the variable."""
    handle, ids = view.inputs(read)[0], view.inputs(node.name)[1]
    controls = [name for name in node.input if name.startswith("^")]
    node.op = "ResourceGather"
    del node.input[:]
    node.input.extend([handle, ids, *controls, *(f"^{name}" for name in view.controls(read))])
    node.attr["dtype"].type = node.attr["Tparams"].type
    for attribute in ("Tparams", "Taxis"):
        node.attr.pop(attribute)


def _wait_instead(node: NodeDef, view: GraphView, instead: dict[str, list[str]]) -> None:
    """A node waits for the gathers, and for what the read waited for, in place of the read."""
    controls = [name[1:] for name in node.input if name.startswith("^")]
    if not any(name in instead for name in controls):
        return
    data = [name for name in node.input if not name.startswith("^")]
    waits = dict.fromkeys(later for name in controls for later in _later(name, view, instead) if later != node.name)
    del node.input[:]
    node.input.extend([*data, *(f"^{name}" for name in waits)])


def _later(name: str, view: GraphView, instead: dict[str, list[str]]) -> list[str]:
    """What is waited for in place of a node."""
    if name not in instead:
        return [name]
    return [*instead[name], *(later for control in view.controls(name) for later in _later(control, view, instead))]
