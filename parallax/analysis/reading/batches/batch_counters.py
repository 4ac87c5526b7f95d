"""Finds the counters of examples of a graph for a fixed batch: variables to which an update adds the batch length.

A script that counts the examples it has seen, or moves along a queue of features, adds its batch size as a number. One
equal to the batch length, in a sum with a variable's own value, is taken to be that length.
"""

from __future__ import annotations

from collections.abc import Callable, Set

from parallax.analysis.reading.batches.batch_lengths import add_length
from parallax.base.types import GraphDef
from parallax.graph.control_flow import branches_of
from parallax.graph.view import VARIABLES, GraphView, node_of

_COUNTS = ("AssignAdd", "AssignAddVariableOp")
_ADDS = ("Add", "AddV2")
_INTEGERS = (3, 9)  # types.proto: int32, int64


def open_counters(
    view: GraphView, opened: GraphDef, forward: Set[str], length: int, find_batch: Callable[[str], str]
) -> None:
    """Makes counters add the length of the open batch.

    Args:
        view: the graph for the fixed batch.
        opened: the graph with an open batch, which is modified.
        forward: the nodes outside autodiff and outside initial values.
        length: of the fixed batch.
        find_batch: node -> the tensor from which it may take the batch length; empty if there is none.
    """
    by_name = {node.name: node for node in opened.node}
    branches = branches_of(view)
    for node in view.nodes:
        slot = _find_counted(view, node, length) if node in forward and not branches[node] else None
        if slot is not None and (batch := find_batch(node)):
            tensor = view.inputs(node)[slot]
            by_name[node].input[slot] = add_length(opened, batch, node, view.dtype(tensor), tensor)


def _find_counted(view: GraphView, node: str, length: int) -> int | None:
    """The input of a node that is the batch length and that is added to a variable."""
    op, inputs = view.op(node), view.inputs(node)
    slots = (1,) if op in _COUNTS else (0, 1) if op in _ADDS and view.dtype(f"{node}:0") in _INTEGERS else ()
    for slot in slots:
        value = view.constant(inputs[slot])
        if value is not None and value.ndim == 0 and value == length and _is_variable(view, inputs[1 - slot]):
            return slot
    return None


def _is_variable(view: GraphView, tensor: str) -> bool:
    """Whether a tensor is a variable, or its value."""
    node = node_of(tensor)
    while view.op(node) in ("Identity", "ReadVariableOp"):
        node = node_of(view.inputs(node)[0])
    return view.op(node) in VARIABLES
