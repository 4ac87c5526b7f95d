"""Lists the tables whose updates could be row-wise if they were resource variables instead of reference variables."""

from __future__ import annotations

from collections.abc import Iterator

from parallax.analysis.reading.lazy.elementwise import ELEMENTWISE
from parallax.graph.view import GraphView, node_of

SCATTERS = ("ScatterAdd", "ScatterSub")
_ASSIGNS = ("Assign", "AssignAdd", "AssignSub")
REASON = (
    "op {op} {name!r} is a reference variable, and only rows of resource variables can be updated lazily: call "
    "tf.compat.v1.enable_resource_variables() first"
)


def reference_tables(view: GraphView) -> dict[str, str]:
    """The tables that are reference variables and are written in full after rows of a slot were; and the reason."""
    reason_by_table = {}
    for node in view.nodes:
        if view.op(node) in SCATTERS:
            for table in _written_with(view, node):
                if table != _variable(view, node):
                    reason_by_table[table] = REASON.format(op=view.op(table), name=table)
    return reason_by_table


def _written_with(view: GraphView, node: str) -> Iterator[str]:
    """The variables that are written in full with an elementwise function of a node's result."""
    shape, met, waiting = view.shape(f"{node}:0"), {node}, [node]
    while waiting:
        for edge in view.consumers(f"{waiting.pop()}:0"):
            op = view.op(edge.node)
            if op in _ASSIGNS and edge.slot == 1:
                yield _variable(view, edge.node)
            elif op in (*ELEMENTWISE, "Identity") and edge.node not in met and view.shape(f"{edge.node}:0") == shape:
                met.add(edge.node)
                waiting.append(edge.node)


def _variable(view: GraphView, write: str) -> str:
    """The variable whose reference a write has."""
    node = write
    while view.inputs(node):
        node = node_of(view.inputs(node)[0])
    return node
