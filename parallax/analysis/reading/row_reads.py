"""Gathers rows directly from a variable where a graph reads the whole variable and gathers rows of the result.

Keras looks rows up this way, and in mixed precision casts the whole table first; the rows are cast instead. A read of a
whole variable copies it once the variable has been written row-wise. Ops that waited for the read, such as a write,
then wait for the rows; a read without consumers is no longer waited for. The reads keep their names, for fetches.
"""

from __future__ import annotations

from tensorflow.core.framework import graph_pb2

from parallax.analysis.reading.lazy.lazy_graph import replace_control_inputs
from parallax.base.types import GraphDef, NodeDef
from parallax.graph.ops import LOOKUPS
from parallax.graph.view import Edge, GraphView, node_of, tensor_name

_WHOLE = ("ReadVariableOp", "Cast")
_ROWS = "rows"


def take_rows_of_variables(graph_def: GraphDef) -> GraphDef:
    """A copy of the graph in which rows are gathered from variables; the graph itself where no reads qualify."""
    sources = {node_of(tensor_name(node.input[0])) for node in graph_def.node if node.op == "GatherV2"}
    if not sources or not any(node.op in _WHOLE and node.name in sources for node in graph_def.node):
        return graph_def
    view = GraphView(graph_def)
    reads = sorted(view.nodes_of(("ReadVariableOp",)))
    gathers_by_read = {read: gathers for read in reads if (gathers := _gathers(view, read)) is not None}
    if not gathers_by_read:
        return graph_def
    read_by = {gather: read for read, gathers in gathers_by_read.items() for gather in gathers}
    instead = {
        read: [_rows_name(view, gather, read) for gather in gathers] for read, gathers in gathers_by_read.items()
    }
    out = graph_pb2.GraphDef(versions=graph_def.versions, library=graph_def.library)
    for node in graph_def.node:
        if node.name in read_by:
            _take_rows(out, node, view, read_by[node.name])
        else:
            out.node.add().CopyFrom(node)
    for node in out.node:
        replace_control_inputs(node, lambda name: _later(name, view, instead))
    return out


def _gathers(view: GraphView, read: str) -> list[str] | None:
    """The gathers of rows that are the only consumers of a read; None where it must stay unchanged."""
    edges = list(view.consumers(f"{read}:0"))
    casts = [edge.node for edge in edges if view.op(edge.node) == "Cast"]
    edges = [e for e in edges if e.node not in casts] + [e for cast in casts for e in view.consumers(f"{cast}:0")]
    gathers = list(dict.fromkeys(edge.node for edge in edges))
    waiting = {n for n in view.users(read) if read in view.controls(n)} - {*casts}
    if not all(_is_row_gather(view, edge) for edge in edges) or not (gathers or waiting):
        return None
    before = view.ancestors(gathers) - {*gathers}
    return None if before & waiting else gathers  # rows of the value before a write


def _is_row_gather(view: GraphView, edge: Edge) -> bool:
    if view.op(edge.node) != "GatherV2" or edge.slot != 0 or view.nodes[edge.node].attr["batch_dims"].i:
        return False
    axis = view.constant(view.inputs(edge.node)[2])
    return axis is not None and int(axis) == 0


def _rows_name(view: GraphView, gather: str, read: str) -> str:
    """The node that gathers rows: the gather itself, or one before it, where rows are cast."""
    return gather if node_of(view.inputs(gather)[0]) == read else f"{gather}/{_ROWS}"


def _take_rows(out: GraphDef, node: NodeDef, view: GraphView, read: str) -> None:
    """Appends a gather from the variable in place of a gather from a read; and the cast of its rows."""
    name, source = _rows_name(view, node.name, read), node_of(view.inputs(node.name)[0])
    rows = out.node.add()
    rows.CopyFrom(node)
    rows.name, rows.op = name, "ResourceGather"
    waits = [*view.controls(node.name), *view.controls(read), *(view.controls(source) if source != read else ())]
    del rows.input[:]
    rows.input.extend([view.inputs(read)[0], view.inputs(node.name)[1], *(f"^{wait}" for wait in waits)])
    rows.attr["dtype"].type = view.nodes[read].attr["dtype"].type
    for attribute in ("Tparams", "Taxis"):
        rows.attr.pop(attribute)
    if name == node.name:
        return
    cast = out.node.add()
    cast.CopyFrom(view.nodes[source])
    cast.name = node.name
    del cast.input[:]
    cast.input.append(name)
    cast.attr.pop("_output_shapes", None)
    if "_output_shapes" in node.attr:
        cast.attr["_output_shapes"].CopyFrom(node.attr["_output_shapes"])


def _later(name: str, view: GraphView, instead: dict[str, list[str]]) -> list[str]:
    """The replacements of a control input."""
    if name not in instead:
        return [name]
    return [*instead[name], *(later for control in view.controls(name) for later in _later(control, view, instead))]


def lookup_edges(view: GraphView, variable: str) -> list[Edge]:
    """The edges of the ids of gathers from a variable, by its handle, reference or value."""
    passes = ("Identity", "ReadVariableOp")
    readers = [variable, *(e.node for e in view.consumers(f"{variable}:0") if view.op(e.node) in passes)]
    edges = [edge for reader in readers for edge in view.consumers(f"{reader}:0")]
    return list(dict.fromkeys(Edge(e.node, 1) for e in edges if view.op(e.node) in LOOKUPS and e.slot == 0))
