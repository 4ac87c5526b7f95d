"""Finds the counters of examples of a graph for a fixed batch: variables to which an update adds the batch length.

A script that counts the examples it has seen, or moves along a queue of features, adds its batch size as a number. One
equal to the batch length, in a sum with a variable's own value, is taken to be that length.
"""

from __future__ import annotations

from collections.abc import Callable, Set

from tensorflow.python.framework.function_def_to_graph import function_def_to_graph_def

from parallax.analysis.reading.batches.batch_lengths import add_length
from parallax.base.types import GraphDef
from parallax.graph.control_flow import branches_of
from parallax.graph.ops import takes_functions
from parallax.graph.view import VARIABLES, GraphView, node_of

_COUNTS = ("AssignAdd", "AssignAddVariableOp")
_COPIES = ("Identity", "Cast")
_ADDS = ("Add", "AddV2")
_INTEGERS, _RESOURCE = (3, 9), 20  # types.proto: int32, int64; resource, the argument of a function


def open_counters(
    view: GraphView, opened: GraphDef, forward: Set[str], length: int, find_batch: Callable[[str], str]
) -> str:
    """Makes counters add the length of the open batch.

    Returns the first node that counts in a loop or a function, where the length is not available; else empty.

    Args:
        view: the graph for the fixed batch.
        opened: the graph with an open batch, which is modified.
        forward: the nodes of runs that read a batch, outside autodiff and outside initial values.
        length: of the fixed batch.
        find_batch: node -> the tensor from which it may take the batch length; empty if there is none.
    """
    by_name = {node.name: node for node in opened.node}
    branches, left = branches_of(view), ""
    for node in view.nodes:
        slot = _find_counted(view, node, length) if node in forward else None
        is_in_loop = any(branch.is_loop for branch in branches[node])
        batch = find_batch(node) if slot is not None and not is_in_loop else ""
        if slot is not None and batch:
            tensor = view.inputs(node)[slot]
            by_name[node].input[slot] = add_length(opened, batch, node, view.dtype(tensor), tensor)
        elif slot is not None or (node in forward and takes_functions(view.op(node)) and _counts(view, node, length)):
            left = left or node
    return left


def _counts(view: GraphView, node: str, length: int) -> bool:
    """Whether a function that a node runs counts examples."""
    library = {one.signature.name: one for one in view.graph_def.library.function}
    waiting, names = [view.nodes[node]], set[str]()
    while waiting:
        called = [f.name for one in waiting.pop().attr.values() for f in (one.func, *one.list.func)]
        for name in called:
            if name in library and name not in names:
                names.add(name)
                waiting += library[name].node_def
    bodies = [GraphView(function_def_to_graph_def(library[name])[0]) for name in sorted(names)]
    return any(_find_counted(body, one, length) is not None for body in bodies for one in body.nodes)


def _find_counted(view: GraphView, node: str, length: int) -> int | None:
    """The input of a node that is the batch length and that is added to a variable."""
    op, inputs = view.op(node), view.inputs(node)
    if op in _COUNTS:
        return 1 if _find_number(view, inputs[1]) == length else None
    for slot in (0, 1) if op in _ADDS and view.dtype(f"{node}:0") in _INTEGERS else ():
        if _find_number(view, inputs[slot]) == length and _is_variable(view, inputs[1 - slot]):
            return slot
    return None


def _find_number(view: GraphView, tensor: str) -> float | None:
    """A constant scalar, or the first entry of a constant shape."""
    while view.op(node_of(tensor)) in _COPIES:
        tensor = view.inputs(node_of(tensor))[0]
    node = node_of(tensor)
    begin = view.constant(view.inputs(node)[1]) if view.op(node) == "StridedSlice" else None
    is_entry = begin is not None and begin.tolist() == [0] and view.flag(node, "shrink_axis_mask")
    value = view.constant(view.inputs(node)[0] if is_entry else tensor)
    if value is None or value.ndim != is_entry or value.dtype.kind not in "iuf":
        return None
    return float(value.flat[0])


def _is_variable(view: GraphView, tensor: str) -> bool:
    """Whether a tensor is a variable, or its value."""
    node = node_of(tensor)
    while view.op(node) in (*_COPIES, "ReadVariableOp", "Switch", "RefSwitch"):
        node = node_of(view.inputs(node)[0])
    return view.op(node) in VARIABLES or (view.op(node) == "Placeholder" and view.dtype(f"{node}:0") == _RESOURCE)
