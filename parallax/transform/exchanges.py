"""Pass: lookups of tables become pulls, and joined gradients that meet their updates become pushes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from parallax.decisions import Decisions, Push, Table
from parallax.graph_view import Edge, GraphView
from parallax.plan import ALLTOALL, PS, fronts_of
from parallax.transform.accumulators import push_rows
from parallax.transform.collectives import open_end
from parallax.transform.edit import SCOPE, Counter, Cut, Editor, Worker
from parallax.transform.exchange import Pulled, found_at, id_bytes, looked_up, merge_equal_rows, merged_rows, pull
from parallax.transform.exchange_op import HOST, WORKERS
from parallax.transform.gradients import add_counter
from parallax.transform.grouping import PullGroup, group, push_nodes
from parallax.transform.together import device_of
from parallax.transform.way import Givers, Meeting, TableRows, ToServers, ToWorkers, askers


@dataclass(frozen=True, slots=True)
class _Exchange:
    """A group of lookups with the pull that was built for it.

    Attributes:
        number: of the group.
        together: the group.
        way: to the owners.
        tables: what gives the rows, in the order of the group's sources.
        table_of: lookup node -> which of the tables.
        place_of: lookup node -> which of the group's lookups.
        pulled: what the pull left.
    """

    number: int
    together: PullGroup
    way: ToWorkers | ToServers
    tables: list[TableRows]
    table_of: dict[str, int]
    place_of: dict[str, int]
    pulled: Pulled


def exchange_rows(editor: Editor, view: GraphView, decisions: Decisions) -> None:
    """Builds one pull for every group of lookups, and one push for every group and site."""
    groups = group(view, decisions)
    arrived: dict[int, list[tuple[Any, Any]]] = {}
    for_servers: dict[int, list[tuple[_Exchange, Any]]] = {}
    for number, together in enumerate(groups.pulls):
        exchange = _pull(editor, view, decisions, number, together)
        for site in together.sites:
            members = [i for i, s in enumerate(groups.sites) if s == site and _nodes(exchange, decisions.pushes[i])]
            values = _gathered(editor, decisions, exchange, members)
            if isinstance(exchange.way, ToServers):
                for_servers.setdefault(members[0], []).append((exchange, values))
                continue
            for index, rows in _push(editor, decisions, exchange, members, values).items():
                arrived.setdefault(index, []).append(rows)
    for index, pieces in sorted(arrived.items()):
        _deliver(editor, decisions.pushes[index], pieces)
    for index, sent in sorted(for_servers.items()):
        _push_to_servers(editor, decisions, index, sent)


def _nodes(exchange: _Exchange, one: Push) -> list[str]:
    """The lookups of a push that this exchange pulled, in the order of the push's rows."""
    return [node for node in one.lookups if node in exchange.place_of]


def _pull(editor: Editor, view: GraphView, decisions: Decisions, number: int, together: PullGroup) -> _Exchange:
    import tensorflow as tf

    tables, table_of = [], {x.node: together.sources.index(view.inputs(x.node)[0]) for x in together.lookups}
    for place, source in enumerate(together.sources):
        table = decisions.table(next(x.table for x in together.lookups if table_of[x.node] == place))
        tables.append(_rows_of(editor, table, source))
    ids = [editor.at(Edge(x.node, x.ids_slot)) for x in together.lookups]
    waits = [editor.operation(n) for n in view.controls(together.lookups[0].node)]
    with tf.name_scope(f"{SCOPE}/pull_{number}/"), tf.control_dependencies(waits):
        way = _way(editor, decisions.table(together.lookups[0].table), decisions.terms.synchronous)
        pulled = pull(tables, [(table_of[x.node], i) for x, i in zip(together.lookups, ids, strict=True)], way)
        place_of = {x.node: i for i, x in enumerate(together.lookups)}
        exchange = _Exchange(number, together, way, tables, table_of, place_of, pulled)
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


def _rows_of(editor: Editor, table: Table, source: str) -> TableRows:
    """What gives the rows of a table: this worker's partition as `source` reads it, or all partitions on servers."""
    import tensorflow as tf

    dtype = tf.dtypes.as_dtype(table.dtype)
    parts = editor.partitions[table.op] if table.servers else (editor.tensor(source),)
    devices = tuple(device_of(server) for server in table.servers)
    return TableRows(table.op, table.variable, table.rows, parts, dtype, table.row_shape, devices)


def _way(editor: Editor, table: Table, synchronous: bool) -> ToWorkers | ToServers:
    worker, wire, size = editor.worker, editor.wire, len(editor.worker.neighbours)
    ownership, meeting = table.ownership(worker.size), None
    fronts = fronts_of(worker.hosts, worker.servers) if synchronous and table.servers else ()
    if fronts:
        meeting = Meeting(WORKERS, worker.size, tuple(fronts[table.servers[p]] for p in ownership.pattern))
    elif worker.merges_in_host and synchronous:
        places = range(size) if table.servers else askers(worker.hosts, worker.hosts[worker.rank], ownership.pattern)
        meeting = Meeting(HOST, size, tuple(places))
    if not table.servers:
        return ToWorkers(ownership, meeting, wire, worker.rank)
    asks = [p for p, server in enumerate(table.servers) if not fronts or fronts[server] == worker.rank]
    return ToServers(ownership, meeting, wire, Givers(tuple(asks), 1 if fronts else worker.size))


def _gathered(editor: Editor, decisions: Decisions, exchange: _Exchange, members: list[int]) -> Any:
    """The gradient rows of the pushes `members`, merged, in the order of the pull's first leg."""
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
        merged = merged_rows(exchange.pulled, values, places)
        return exchange.way.push(exchange.pulled.trip, merged)


def _push(
    editor: Editor, decisions: Decisions, exchange: _Exchange, members: list[int], rows: Any
) -> dict[int, tuple[Any, Any]]:
    """One exchange between workers for the pushes `members`; what arrives for each: (values, local row numbers)."""
    import tensorflow as tf

    if not isinstance(exchange.way, ToWorkers):
        return {}
    with tf.name_scope(f"{SCOPE}/push_{exchange.number}/"):
        arrived = exchange.way.arrive(exchange.pulled.trip, rows, exchange.pulled.bases)
        with tf.control_dependencies([_count(editor, exchange, "push")]):
            return {i: _of_table(arrived[exchange.table_of[_nodes(exchange, decisions.pushes[i])[0]]]) for i in members}


def _push_to_servers(editor: Editor, decisions: Decisions, index: int, sent: list[tuple[_Exchange, Any]]) -> None:
    """Sends the gradient rows of one push, of all the pulls they were looked up in, to servers."""
    import tensorflow as tf

    by_partition = []
    for exchange, values in sent:
        if not isinstance(exchange.way, ToServers):
            continue
        last, way = exchange.pulled.trip.last, exchange.way
        with tf.name_scope(f"{SCOPE}/push_{exchange.number}/"):
            with tf.control_dependencies([_count(editor, exchange, "push")]):
                values = way.to_servers(tf.identity(values))
            by_partition.append((way.by_partition(last, values), way.by_partition(last, last.local)))
    (givers,) = {exchange.way.givers for exchange, _ in sent if isinstance(exchange.way, ToServers)}
    push_rows(editor, decisions, index, by_partition, givers)


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
            found.append(found_at(exchange.pulled, exchange.table_of[node], ids, exchange.way.slots))
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
    """Counts one run: distinct rows by table, those asked of owners, and of them those that leave."""
    import tensorflow as tf

    way, splits, asked_of = exchange.way, exchange.pulled.trip.last.splits, exchange.way.ownership.pattern
    from_server = isinstance(way, ToServers)
    if isinstance(way, ToServers) and way.fronts:  # what they ask their servers stays on their hosts
        from_server, splits, asked_of = False, exchange.pulled.first.splits, way.fronts
    away = [1] * way.ownership.holders if from_server else _away(editor.worker)
    asked, left = tf.reduce_sum(splits), tf.reduce_sum(splits * tf.constant(away, tf.int32))
    ids = id_bytes([t.rows for t in exchange.tables], way.slots) if kind == "pull" else 8 if from_server else 0
    counter = Counter(
        tensor="",
        kind=kind,
        variables=tuple(t.variable for t in exchange.tables),
        row_bytes=math.prod(exchange.tables[0].row_shape) * editor.wire.rows_type(exchange.tables[0].dtype).size,
        id_bytes=ids,
        trains=bool(exchange.together.sites),
        route=PS if isinstance(way, ToServers) else ALLTOALL,
        away=sum(away[one] for one in asked_of) / len(asked_of),
    )
    return add_counter(editor, counter, [*tf.unstack(exchange.pulled.distinct, len(exchange.tables)), asked, left])


def _away(worker: Worker) -> list[int]:
    """For each worker 1 when what goes there leaves this host, or, on one host, this process; else 0."""
    here = worker.neighbours if len(set(worker.hosts)) > 1 else (worker.rank,)
    return [int(rank not in here) for rank in range(worker.size)]
