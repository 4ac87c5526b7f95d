"""Computes a range of rows of a value in a graph without its other rows, where the graph's ops allow.

The rules are those by which owners compute their initial rows (passes/initial_rows.py), applied to a range.
"""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

from parallax.base.types import GraphDef
from parallax.graph.ownership import Ownership
from parallax.graph.view import Edge, GraphView
from parallax.plans.rewrites import Rewrites, TrainingMode
from parallax.transform.building.editor import Worker, open_editor
from parallax.transform.passes.initial_rows import LocalRows


@dataclass(frozen=True)
class _RowsInARange(Ownership):
    """An ownership in which owner 0 has rows first, ..., first + length - 1 of `total`.

    It is one round, without materializing a pattern of that many slots.
    """

    total: int = 1
    first: int = 0
    length: int = 0

    @property
    def slots(self) -> int:
        return self.total

    def slots_of(self, holder: int) -> tuple[int, ...]:
        return tuple(range(self.first, self.first + self.length))

    def count(self, holder: int, rows: int) -> int:
        return self.length


def range_of_rows(graph_def: GraphDef, tensor: str, rows: int, first: int, count: int) -> tuple[GraphDef, str] | None:
    """A graph that computes a range of rows of a value, bit for bit those of the full value.

    Args:
        graph_def: a GraphDef with shapes that computes the value.
        tensor: name of the value.
        rows: the number of its rows.
        first: the first row.
        count: the number of rows.

    Returns:
        The graph, and the name of the tensor `[count, ...]`; None where some op has no rule by row.
    """
    whole = type(graph_def)()
    whole.CopyFrom(graph_def)
    identity = whole.node.add(name="rows", op="Identity", input=[tensor])
    view = GraphView(whole)
    identity.attr["T"].type = tf.as_dtype(view.dtype(tensor)).as_datatype_enum
    editor = open_editor(view, Worker(0, 1, 0), TrainingMode())
    edge = Edge(identity.name, 0)
    with editor.scratch.as_default(), tf.name_scope("parallax/"):
        sliced = LocalRows(editor, Rewrites()).at(edge, tensor, rows, _RowsInARange((0,), 1, rows, first, count), 0)
    editor.redirect([edge], sliced)
    return None if editor.sliced_values else (editor.finish(), f"{identity.name}:0")
