"""Fits loops to the new ops inside: entries for outside tensors, and iterations one after the other."""

from __future__ import annotations

from parallax.base.types import GraphDef, NodeDef
from parallax.graph.control_flow import branches_of
from parallax.graph.view import GraphView, node_of, tensor_name
from parallax.transform.building.all_to_all import ALL_REDUCE

_COLLECTIVES = (ALL_REDUCE, "QueueDequeueV2")
_ENTERS, _EXITS = ("Enter", "RefEnter"), ("Exit", "RefExit")


def bring_into_loops(graph_def: GraphDef) -> None:
    """Makes each op of a loop read outside tensors through an Enter. The graph is modified.

    Args:
        graph_def: a graph in which ops may read tensors from outside their loops.
    """
    enters = {node.attr["frame_name"].s.decode(): node for node in graph_def.node if node.op in _ENTERS}
    if not enters:
        return
    view = GraphView(graph_def)
    frames = {
        node: tuple(branch.predicate for branch in found if branch.is_loop) for node, found in branches_of(view).items()
    }
    known = set[str]()
    for node in list(graph_def.node):
        if node.op in _EXITS or not frames[node.name]:
            continue
        inside = frames[node.name][:-1] if node.op in _ENTERS else frames[node.name]
        for slot, tensor in enumerate(view.inputs(node.name)):
            for frame in inside[len(frames[node_of(tensor)]) :]:
                name = f"{frame}/brought/{tensor.replace(':', '_')}"
                if name not in known:
                    known.add(name)
                    _add_enter(graph_def, enters[frame], name, tensor, view.dtype(view.inputs(node.name)[slot]))
                tensor = f"{name}:0"
            node.input[slot] = tensor if tensor != tensor_name(node.input[slot]) else node.input[slot]


def run_in_order(graph_def: GraphDef) -> None:
    """Makes iterations with collectives run one after the other, in one order on all workers; modifies the graph."""
    if not any(node.op in _ENTERS for node in graph_def.node):
        return
    view = GraphView(graph_def)
    branches = branches_of(view)
    meeting = [one for node in view.nodes_of(_COLLECTIVES) for one in branches[node] if one.is_loop]
    frames = {one.predicate for one in meeting}
    for node in graph_def.node if frames else ():
        if node.op in _ENTERS and node.attr["frame_name"].s.decode() in frames:
            node.attr["parallel_iterations"].i = 1


def _add_enter(graph_def: GraphDef, other: NodeDef, name: str, tensor: str, dtype: int) -> None:
    """Adds a constant entry to a loop that has another one; every iteration reads it."""
    enter = graph_def.node.add(name=name, op="Enter", input=[tensor], device=other.device)
    enter.attr["T"].type = dtype
    enter.attr["is_constant"].b = True
    for attribute in ("frame_name", "parallel_iterations"):
        enter.attr[attribute].CopyFrom(other.attr[attribute])
