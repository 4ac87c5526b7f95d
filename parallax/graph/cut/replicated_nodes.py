"""Nodes that exist on each stage of a cut graph: those computed from constants and feeds alone, and small state.

A run feeds all ranks of a replica alike, so values computed from feeds and constants are equal on all stages. The same
holds for a scalar variable that is written only from these, such as a global step, a learning rate or a power of
Adam's: each stage stores its own copy, and the stages agree without a message.
"""

from __future__ import annotations

import math

from parallax.graph.control_flow import branches_of
from parallax.graph.ops import op_definition, takes_functions
from parallax.graph.view import GraphView, node_of

_SOURCES = ("Const", "Placeholder", "PlaceholderV2")
_ALIKE = ("Assert", "RestoreV2")
"""Stateful ops that have the same effect on all stages."""


def find_everywhere(view: GraphView) -> frozenset[str]:
    """The nodes that exist on each stage."""
    variables = {node for node in view.nodes_of(["VarHandleOp"]) if _is_scalar(view, node)}
    while True:
        computed = _find_computable(view, variables)
        changing = {node for node in variables if not _is_read_everywhere(view, node, computed)}
        if not changing:
            return frozenset(computed | variables)
        variables -= changing


def _find_computable(view: GraphView, variables: set[str]) -> set[str]:
    """The nodes computed from constants, feeds and some variables."""
    branches, computed = branches_of(view), set(variables)
    for node in view.topological_order():
        if branches[node] or node in variables:
            continue
        op, before = view.op(node), [node_of(tensor) for tensor in view.inputs(node)]
        has_all = computed.issuperset(before)
        if op == "NoOp" or (op in _SOURCES and computed.issuperset(view.controls(node))):
            computed.add(node)
        elif has_all and not variables.isdisjoint(before) and not takes_functions(op):
            computed.add(node)  # reads or writes such a variable; it waits for no node of another stage
        elif has_all and before and computed.issuperset(view.controls(node)) and _is_deterministic(op):
            computed.add(node)
    return computed


def _is_deterministic(op: str) -> bool:
    definition = op_definition(op)
    return definition is not None and (not definition.is_stateful or op in _ALIKE)


def _is_scalar(view: GraphView, variable: str) -> bool:
    shape = view.nodes[variable].attr["shape"].shape
    return not shape.unknown_rank and math.prod(dim.size for dim in shape.dim) == 1


def _is_read_everywhere(view: GraphView, variable: str, everywhere: set[str]) -> bool:
    """Whether all nodes that read the handle of a variable exist on each stage."""
    return all(edge.node in everywhere for edge in view.consumers(f"{variable}:0"))
