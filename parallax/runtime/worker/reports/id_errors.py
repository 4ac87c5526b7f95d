"""Recognises TensorFlow errors about out-of-range ids, and reports the id, the lookup and the step."""

from __future__ import annotations

import re

from parallax.base.errors import IdError
from parallax.base.types import OpError
from parallax.graph.ops import PASSES_ON
from parallax.graph.row_updates import GATHER_ROWS
from parallax.graph.view import VARIABLES, GraphView, node_of
from parallax.report.text import pluralize
from parallax.transform.swap import as_planned

# The gather kernel writes the first; the check before a pull (parallax/native/leg.cc) the second.
_OF_GATHER = re.compile(r"indices\[[\d,]*\] = (-?\d+) is not in \[0, (\d+)\)")
_OF_PULL = re.compile(
    r"\[An id must be a row of its table: (.*) has rows 0 to (-?\d+), and was asked for\] \[([^\]]*)\]", re.DOTALL
)
_NODE = re.compile(r"\{\{node ([^}]*)\}\}")
_PASSES_ON = (*PASSES_ON, "ReadVariableOp")


def id_error(error: OpError, view: GraphView, rank: int, step: int | None) -> IdError | None:
    """Returns an error that names table, id, number of rows, rank and step; None for any other error.

    Args:
        error: an InvalidArgumentError of a run.
        view: the graph that was run.
        rank: of the worker that ran it.
        step: of this start of the job, from 1; None if steps are not counted.
    """
    message = str(error.message)
    pulled = _OF_PULL.search(message)
    gathered, node = _OF_GATHER.search(message), _NODE.search(message)
    if pulled:
        variable, rows, ids = pulled[1], int(pulled[2]) + 1, pulled[3]
    elif gathered and node:
        variable, rows, ids = _variable(view, node[1]), int(gathered[2]), gathered[1]
    else:
        return None
    if not variable:
        return None
    what = f"An id must be a row of its table: {variable} has rows 0 to {rows - 1}, got {ids}. "
    at = "" if step is None else f" in step {step}"
    place = f"Rank {rank} looked that up{at}, and the table has {pluralize(rows, 'row')}. "
    remedy = "Check what feeds the lookup."
    return IdError(f"{what}{place}{remedy}", f"{what}{remedy}")


def _variable(view: GraphView, node: str) -> str:
    """The variable that a gather reads; empty when it reads something else."""
    while node in view.nodes and view.inputs(node):
        of_variable = 1 if view.op(node) == GATHER_ROWS else 0
        node = node_of(view.inputs(node)[of_variable])
        if view.op(node) in VARIABLES:
            return as_planned(node)
        if view.op(node) not in _PASSES_ON:
            return ""
    return ""
