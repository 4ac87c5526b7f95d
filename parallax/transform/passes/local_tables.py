"""Passes for tables: local shapes, full values sliced to local rows, and local rows gathered to full values.

In the row-local view, a table and its slot variables store the rows that this worker owns; row-wise update ops then
remain as the user wrote them.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2

from parallax.base.types import Tensor
from parallax.graph.ownership import Ownership
from parallax.plans.rewrites import Rewrites, Table
from parallax.transform.building.collectives import all_gather, open_end
from parallax.transform.building.editor import SCOPE, Editor
from parallax.transform.passes.initial_rows import LocalRows
from parallax.transform.passes.server_partitions import row_places


def spread_tables(editor: Editor, rewrites: Rewrites) -> None:
    """Sets the local shapes of tables and their slots."""
    for table in rewrites.tables:
        if table.servers:
            continue
        local = table.local_shape(editor.worker.rank, editor.worker.size)
        for member in table.members:
            shape = attr_value_pb2.AttrValue()
            shape.CopyFrom(editor.view.nodes[member].attr["shape"])
            if local:  # a slot may have other columns than its table
                shape.shape.dim[0].size = local[0]
            editor.attributes[(member, "shape")] = shape
    _whole_shapes(editor, rewrites)
    _count_rows(editor, rewrites)


def _whole_shapes(editor: Editor, rewrites: Rewrites) -> None:
    for shape in rewrites.shapes:
        number = editor.tensor(f"{shape.node}:0").dtype.as_numpy_dtype
        editor.become_constant(shape.node, np.array(shape.shape, number))


def _count_rows(editor: Editor, rewrites: Rewrites) -> None:
    """Makes ops that create rows of a table at their owner create the owner's number of rows."""
    for count in rewrites.counts:
        table, edge = rewrites.table(count.table), count.edge
        number = editor.tensor(editor.view.inputs(edge.node)[edge.slot]).dtype
        ownership, worker = table.ownership(editor.worker.size), editor.worker
        with tf.name_scope(f"{SCOPE}/local_rows/"):
            if table.servers:
                counts = ownership.counts(table.rows)
                editor.redirected_parts[edge] = [tf.constant(rows, number) for rows in counts]
            else:
                editor.redirect([edge], tf.constant(ownership.count(worker.rank, table.rows), number))


def slice_rows(editor: Editor, rewrites: Rewrites) -> None:
    """Slices full values that are combined with local rows, or computes only these rows."""
    local_rows, worker = LocalRows(editor, rewrites), editor.worker
    for cut in rewrites.slices:
        table = rewrites.table(cut.table)
        if table.servers:
            continue
        for edge in cut.edges:
            with tf.name_scope(f"{SCOPE}/local_rows/"):
                rows = local_rows.at(edge, table.variable, table.rows, table.ownership(worker.size), worker.rank)
                editor.redirect([edge], rows)


def gather_rows(editor: Editor, rewrites: Rewrites) -> None:
    """Gathers local rows that are read in full, or may be fetched, in the user's order."""
    tables = {t.op: t for t in rewrites.tables}
    places: dict[tuple[int, Ownership], Tensor] = {}
    for gather in rewrites.gathers:
        table = tables[gather.table]
        if table.servers:
            continue
        with tf.name_scope(f"{SCOPE}/whole/"):
            key = (table.rows, table.ownership(editor.worker.size))
            if key not in places:
                places[key] = row_places(*key)
            inputs = [editor.take_tensor(gather.tensor), places[key]]
            whole = editor.copies.copy((_whole, table.rows, table.row_shape), partial(_whole, table=table), inputs)
        editor.redirect(gather.edges, whole)
        editor.full_tensors[gather.tensor] = whole.name


def _whole(local: Tensor, places: Tensor, table: Table) -> Tensor:
    """All rows `[rows, ...]`, gathered from local rows; every worker must run it."""
    row_shape = local.shape.as_list()[1:] if local.shape.rank else list(table.row_shape)
    whole = tf.gather(all_gather(open_end(local, [None, *row_shape])), places)
    whole.set_shape([table.rows, *row_shape])
    return whole
