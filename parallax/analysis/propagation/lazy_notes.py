"""Plan notes on tables whose updates write all rows: those converted to row-wise updates, and why others are not."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from parallax.analysis.reading.capture import CapturedGraph
from parallax.analysis.reading.lazy.references import REASON
from parallax.graph.spec import VariableSpec
from parallax.graph.view import GraphView

_WRITES = ("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp", "Assign", "AssignAdd", "AssignSub")
_APPLIES = re.compile(r"(Resource)?Apply[A-Z]")


def lazy_notes(captured: CapturedGraph, variables: Iterable[VariableSpec]) -> tuple[str, ...]:
    """The tables that are updated by row where they are touched, and why others are not.

    Args:
        captured: the graph.
        variables: the specs of its variables.
    """
    by_row = [captured.variables[one.table].logical_name for one in captured.lazy if one.node]
    text = f"rows are updated only when touched or read, with the same result: {', '.join(dict.fromkeys(by_row))}"
    whole = {captured.variables[one.table].logical_name: one.reason for one in captured.lazy if not one.node}
    if captured.by_row:
        whole.update(_find_unseen(captured.view, variables, {*by_row, *whole}))
    every_step = (f"every step updates all rows of {name}: {reason}" for name, reason in whole.items())
    return (*([text] if by_row else []), *every_step)


def _find_unseen(view: GraphView, variables: Iterable[VariableSpec], seen: set[str]) -> Iterator[tuple[str, str]]:
    """The tables with gradient rows that are written in full and that no rule has judged; and why."""
    for variable in variables:
        if variable.name in seen or not any(source.indices for source in variable.gradients):
            continue
        for node in variable.updates:
            if reason := _find_reason(view, node, [part.op for part in variable.parts]):
                yield variable.name, reason
                break


def _find_reason(view: GraphView, node: str, parts: list[str]) -> str:
    """Why a write of a full table is not converted to a row-wise one; empty where the node writes rows."""
    op = view.op(node)
    if _APPLIES.match(op):
        return f"op {op} {node!r} takes a dense gradient: pass the tf.IndexedSlices of tf.gradients to apply_gradients"
    if op not in _WRITES:
        return ""
    references = [part for part in parts if view.gives_reference(part)]
    if references:
        return REASON.format(op=view.op(references[0]), name=references[0])
    return (
        f"op {op} {node!r} writes a value that cannot be computed row by row: make the gradient dense with "
        "tf.convert_to_tensor or tf.math.unsorted_segment_sum, and compute each element of the update independently"
    )
