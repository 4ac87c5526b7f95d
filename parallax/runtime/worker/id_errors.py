"""Recognises in an error of TensorFlow that an id was no row of its table, and says which table and id it was."""

from __future__ import annotations

import re

from parallax.errors import SessionError
from parallax.graph.ops import PASSES_ON
from parallax.graph.row_updates import GATHER_ROWS
from parallax.graph.view import GraphView, split_tensor
from parallax.transform.swap import as_planned
from parallax.types import OpError

# The kernel of a gather says the first; the check before a pull (parallax/native/leg.cc) the second.
_OF_GATHER = re.compile(r"indices\[[\d,]*\] = (-?\d+) is not in \[0, (\d+)\)")
_OF_PULL = re.compile(r"\[(An id must be a row of its table: [^\]]*)\] \[([^\]]*)\]")
_NODE = re.compile(r"\{\{node ([^}]*)\}\}")
_PASSES_ON = (*PASSES_ON, "ReadVariableOp")
_VARIABLES = ("VarHandleOp", "VariableV2", "Variable")


def id_error(error: OpError, view: GraphView) -> SessionError | None:
    """The error that names table and id; None when something else went wrong.

    Args:
        error: an InvalidArgumentError of a run.
        view: the graph that was run.
    """
    message = str(error.message)
    pulled = _OF_PULL.search(message)
    if pulled:
        return SessionError(f"{pulled[1]} {pulled[2]}. Look at what feeds the lookup.")
    gathered, node = _OF_GATHER.search(message), _NODE.search(message)
    variable = _variable(view, node[1]) if node else ""
    if not gathered or not variable:
        return None
    return SessionError(
        f"An id must be a row of its table: {variable} has rows 0 to {int(gathered[2]) - 1}, and was asked for "
        f"{gathered[1]}. Look at what feeds the lookup."
    )


def _variable(view: GraphView, node: str) -> str:
    """The variable that a gather reads; empty when it reads something else."""
    while node in view.nodes and view.inputs(node):
        of_variable = 1 if view.op(node) == GATHER_ROWS else 0
        node = split_tensor(view.inputs(node)[of_variable])[0]
        if view.op(node) in _VARIABLES:
            return as_planned(node)
        if view.op(node) not in _PASSES_ON:
            return ""
    return ""
