"""Pass: lookups of tables become pulls, and joined gradients that meet their updates become pushes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from parallax.decisions import Decisions, Push
from parallax.graph_view import Edge, GraphView
from parallax.transform.collectives import open_end
from parallax.transform.edit import SCOPE, Counter, Cut, Editor
from parallax.transform.exchange import Pulled, TableRows, found_at, id_bytes, looked_up, merge_equal_rows, pull, push
from parallax.transform.gradients import add_counter
from parallax.transform.grouping import PullGroup, group, push_nodes


@dataclass(frozen=True, slots=True)
class _Exchange:
    """A group of lookups with the pull that was built for it.

    Attributes:
        number: of the group.
        together: the group.
        tables: what gives the rows, in the order of the group's sources.
        table_of: lookup node -> which of the tables.
        place_of: lookup node -> which of the group's lookups.
        pulled: what the pull left.
    """

    number: int
    together: PullGroup
    tables: list[TableRows]
    table_of: dict[str, int]
    place_of: dict[str, int]
    pulled: Pulled


def exchange_rows(editor: Editor, view: GraphView, decisions: Decisions) -> None:
    """Builds one pull for every group of lookups, and one push for every group and site."""
    groups = group(view, decisions)
    arrived: dict[int, list[tuple[Any, Any]]] = {}
    for number, together in enumerate(groups.pulls):
        exchange = _pull(editor, view, decisions, number, together)
        for site in together.sites:
            members = [i for i, s in enumerate(groups.sites) if s == site and _nodes(exchange, decisions.pushes[i])]
            for index, rows in _push(editor, decisions, exchange, members).items():
                arrived.setdefault(index, []).append(rows)
    for index, pieces in sorted(arrived.items()):
        _deliver(editor, decisions.pushes[index], pieces)


def _nodes(exchange: _Exchange, one: Push) -> list[str]:
    """The lookups of a push that this exchange pulled, in the order of the push's rows."""
    return [node for node in one.lookups if node in exchange.place_of]


def _pull(editor: Editor, view: GraphView, decisions: Decisions, number: int, together: PullGroup) -> _Exchange:
    import tensorflow as tf

    tables, table_of = [], {x.node: together.sources.index(view.inputs(x.node)[0]) for x in together.lookups}
    for place, source in enumerate(together.sources):
        op = next(x.table for x in together.lookups if table_of[x.node] == place)
        table = next(t for t in decisions.tables if t.op == op)
        dtype = tf.dtypes.as_dtype(table.dtype)
        tables.append(TableRows(table.op, table.variable, table.rows, editor.tensor(source), dtype, table.row_shape))
    ids = [editor.at(Edge(x.node, x.ids_slot)) for x in together.lookups]
    waits = [editor.operation(n) for n in view.controls(together.lookups[0].node)]
    with tf.name_scope(f"{SCOPE}/pull_{number}/"), tf.control_dependencies(waits):
        pulled = pull(
            tables, [(table_of[x.node], i) for x, i in zip(together.lookups, ids, strict=True)], editor.worker.size
        )
        place_of = {x.node: i for i, x in enumerate(together.lookups)}
        exchange = _Exchange(number, together, tables, table_of, place_of, pulled)
        with tf.control_dependencies([_count(editor, exchange, "pull")]):
            results = [
                looked_up(pulled, i, x, tables[table_of[n]].row_shape)
                for (n, i), x in zip(place_of.items(), ids, strict=True)
            ]
    for lookup, result, cut in zip(together.lookups, results, pulled.id_cuts, strict=True):
        if lookup.combines:
            with tf.name_scope(f"{SCOPE}/pull_{number}/"):
                every = tf.range(tf.size(editor.at(Edge(lookup.node, lookup.ids_slot))))
            ids_edge = Edge(lookup.node, lookup.ids_slot)
            editor.lead([ids_edge], tf.cast(every, editor.at(ids_edge).dtype))
            editor.lead([Edge(lookup.node, 0)], result)
        else:
            editor.become_identity(lookup.node, result)
        pushed_by = (p for p in decisions.pushes if lookup.node in p.lookups)
        _may_be_cut(editor, cut, (lookup.node, *(n for p in pushed_by for n in push_nodes(p))))
    return exchange


def _push(editor: Editor, decisions: Decisions, exchange: _Exchange, members: list[int]) -> dict[int, tuple[Any, Any]]:
    """One exchange of gradient rows for the pushes `members`; what arrives for each: (values, local row numbers)."""
    import tensorflow as tf

    values, places = [], []
    with tf.name_scope(f"{SCOPE}/push_{exchange.number}/"):
        for one in (decisions.pushes[i] for i in members):
            rows = open_end(_values(editor, exchange, one))
            place = open_end(tf.concat(_places(editor, exchange, one), 0), [None])
            for cut in (rows, place):
                _may_be_cut(editor, cut, push_nodes(one))
            values.append(rows)
            places.append(place)
        arrived = push(exchange.pulled, values, places, len(exchange.tables))
        with tf.control_dependencies([_count(editor, exchange, "push")]):
            return {i: _of_table(arrived[exchange.table_of[_nodes(exchange, decisions.pushes[i])[0]]]) for i in members}


def _of_table(rows: tuple[Any, Any]) -> tuple[Any, Any]:
    import tensorflow as tf

    return tf.identity(rows[0]), tf.identity(rows[1])


def _places(editor: Editor, exchange: _Exchange, one: Push) -> list[Any]:
    """For each lookup of a push that this exchange pulled, where the rows of its piece were pulled to, `[n]`."""
    found = []
    for node, searched in zip(one.lookups, one.searched, strict=True):
        if node not in exchange.place_of:
            continue
        if searched:
            ids = editor.tensor(searched)
            found.append(found_at(exchange.pulled, exchange.table_of[node], ids, editor.worker.size))
        else:
            found.append(exchange.pulled.positions[exchange.place_of[node]])
    return found


def _values(editor: Editor, exchange: _Exchange, one: Push) -> Any:
    """The gradient rows `[n, width]` of those lookups of a push that this exchange pulled."""
    import tensorflow as tf

    width = int(exchange.pulled.rows.shape[1])
    if not one.values:
        return tf.zeros([tf.add_n([tf.size(place) for place in _places(editor, exchange, one)]), width])
    rows = tf.reshape(editor.at(one.values[0]), [-1, width])
    if set(one.lookups) <= exchange.place_of.keys():
        return rows
    ids = [editor.tensor(editor.view.inputs(node)[1]) for node in one.lookups]
    counted = [editor.tensor(s) if s else i for s, i in zip(one.searched, ids, strict=True)]
    pieces = tf.split(rows, [tf.size(piece) for piece in counted])
    return tf.concat([p for p, node in zip(pieces, one.lookups, strict=True) if node in exchange.place_of], 0)


def _deliver(editor: Editor, one: Push, pieces: list[tuple[Any, Any]]) -> None:
    """Leads the update to what arrived, in the shape and type that it takes."""
    import tensorflow as tf

    with tf.name_scope(f"{SCOPE}/deliver/{one.table}/"):
        values = tf.concat([v for v, _ in pieces], 0) if len(pieces) > 1 else pieces[0][0]
        indices = tf.concat([i for _, i in pieces], 0) if len(pieces) > 1 else pieces[0][1]
        if one.merge:
            values, indices = merge_equal_rows(values, indices)
        editor.lead(one.indices, tf.cast(indices, editor.at(one.indices[0]).dtype))
        if one.values:
            row_shape = editor.at(one.values[0]).shape.as_list()[1:]
            editor.lead(one.values, tf.reshape(values, [-1, *row_shape]))


def _may_be_cut(editor: Editor, tensor: Any, needed_by: tuple[str, ...]) -> None:
    shape = tuple(0 if length is None else length for length in tensor.shape.as_list())
    editor.cuts.append(
        Cut(str(tensor.name), shape, str(tensor.dtype.as_numpy_dtype.__name__), tuple(dict.fromkeys(needed_by)))
    )


def _count(editor: Editor, exchange: _Exchange, kind: str) -> Any:
    """Counts one run: distinct rows by table, and rows that leave: asked of others and given to others, or pushed."""
    import tensorflow as tf

    rank, size = editor.worker.rank, editor.worker.size
    pulled = exchange.pulled
    others = tf.size(pulled.rows[:, 0]) - pulled.splits[rank]
    counter = Counter(
        tensor="",
        kind=kind,
        variables=tuple(t.variable for t in exchange.tables),
        row_bytes=math.prod(exchange.tables[0].row_shape) * exchange.tables[0].dtype.size,
        id_bytes=id_bytes([t.rows for t in exchange.tables], size),
        trains=bool(exchange.together.sites),
    )
    return add_counter(editor, counter, [*tf.unstack(pulled.distinct, len(exchange.tables)), others])
