"""Pass: replaces lookups of tables with pulls, and gradient rows at updates of tables with pushes.

A pull checks the ids (one outside its table ends the run here, before anything is sent), deduplicates them, orders them
by destination, and returns the rows. A push reuses the order of its pull, and depends on the ids of the pull alone:
rows without a consumer, as in a step whose gradient does not depend on them, are not sent back. Equal gradient rows are
summed before they are sent. Rows of several workers can be equal: the owner sums them again, by the optimizer's own
Unique where it has one, else by building/deduplicated_ids.py (rewrites.Push.merge).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import tensorflow as tf

from parallax.base.types import Operation, Tensor
from parallax.cluster.team_names import HOST, WORKERS
from parallax.graph.batches import is_of_script
from parallax.graph.view import Edge
from parallax.plans.plan import server_fronts
from parallax.plans.rewrites import Lookup, Push, Rewrites, Table
from parallax.transform.building.collectives import open_end
from parallax.transform.building.deduplicated_ids import (
    DeduplicatedIds,
    deduplicate_ids,
    gather_looked_up,
    id_bytes,
    locate_ids,
    merge_equal_rows,
    merged_rows,
)
from parallax.transform.building.editor import SCOPE, Counter, Cut, Editor, Worker
from parallax.transform.building.fused_exchanges import PullGroup, group, push_nodes, push_width, requesters
from parallax.transform.building.reduce_and_broadcast import device_of
from parallax.transform.building.transports import (
    MergeGroup,
    Pushers,
    RoutedKeys,
    ServerTransport,
    TableRows,
    Transport,
    WorkerTransport,
)
from parallax.transform.passes.dense_and_gathered import add_counter
from parallax.transform.passes.gradients_to_servers import push_rows
from parallax.transform.passes.ids_from_end import ids_before


@dataclass(frozen=True, slots=True)
class _Exchange:
    """A group of lookups with the pull that was built for them.

    Attributes:
        number: of the group.
        group: the group.
        transport: the transport to the owners.
        tables: the sources of the rows, in the order of the group's sources.
        table_of: lookup node -> index of its table.
        place_of: lookup node -> its index among the group's lookups.
        ids: the requested rows of the lookups.
        routed: the route of the rows.
    """

    number: int
    group: PullGroup
    transport: Transport
    tables: list[TableRows]
    table_of: dict[str, int]
    place_of: dict[str, int]
    ids: DeduplicatedIds
    routed: RoutedKeys


@dataclass(frozen=True, slots=True)
class _GatheredRows:
    """Coalesced gradient rows of one worker, ready for their owners.

    Attributes:
        rows: `[u, width]`, in the order of the route's last hop.
        ids: the rows that they belong to: the pulled ones, unless the push has its own.
        routed: their route.
        names_rows: whether the push has its own rows.
    """

    rows: Tensor
    ids: DeduplicatedIds
    routed: RoutedKeys
    names_rows: bool


def exchange_rows(editor: Editor, rewrites: Rewrites) -> None:
    """Builds one pull for every group of lookups, and one push for every group and site."""
    groups = group(editor.view, rewrites)
    arrived: dict[int, list[tuple[Tensor, Tensor]]] = {}
    for_servers: dict[int, list[tuple[_Exchange, _GatheredRows]]] = {}
    for number, pull_group in enumerate(groups.pulls):
        exchange = _pull(editor, rewrites, number, pull_group)
        for site in pull_group.sites:
            members = [i for i, s in enumerate(groups.sites) if s == site and _carries(exchange, rewrites, i)]
            if not members:
                continue
            gathered = _gather(editor, rewrites, exchange, members)
            if rewrites.table(rewrites.pushes[members[0]].table).servers:  # which consume all rows of a push together
                for_servers.setdefault(members[0], []).append((exchange, gathered))
                continue
            rows_by_push = _send_gradient_rows(editor, rewrites, exchange, members, gathered)
            for index, rows in zip(members, rows_by_push, strict=True):
                arrived.setdefault(index, []).append(rows)
    for index, pieces in sorted(arrived.items()):
        _deliver(editor, rewrites.pushes[index], pieces, rewrites.table(rewrites.pushes[index].table).row_shape)
    for index, sent in sorted(for_servers.items()):
        by_partition = [
            _send_gradient_rows(editor, rewrites, exchange, [index], gathered) for exchange, gathered in sent
        ]
        pushers = _pushers(editor, rewrites.table(rewrites.pushes[index].table), rewrites.terms.synchronous)
        push_rows(editor, rewrites, index, by_partition, pushers)


def _carries(exchange: _Exchange, rewrites: Rewrites, index: int) -> bool:
    """Whether a push uses this exchange: that of each of its lookups, or, with its own rows, of the first."""
    nodes = _nodes(exchange, rewrites.pushes[index])
    return bool(nodes) and (not rewrites.accumulated_gradients or nodes[0] == rewrites.pushes[index].lookups[0])


def _nodes(exchange: _Exchange, one: Push) -> list[str]:
    """The lookups of a push that this exchange pulled, in the order of the push's rows."""
    return [node for node in one.lookups if node in exchange.place_of]


def _pull(editor: Editor, rewrites: Rewrites, number: int, group: PullGroup) -> _Exchange:
    view = editor.view
    tables, table_of = [], {x.node: group.sources.index(view.inputs(x.node)[0]) for x in group.lookups}
    for place, source in enumerate(group.sources):
        lookup = next(x for x in group.lookups if table_of[x.node] == place)
        tables.append(_rows_of(editor, rewrites.table(lookup.table), source, lookup.row_shape))
    raw_ids, from_end = zip(*(_ids_of(editor, rewrites, x) for x in group.lookups), strict=True)
    waits = [editor.operation(n) for n in view.controls(group.lookups[0].node)]
    with tf.name_scope(f"{SCOPE}/pull_{number}/"), tf.control_dependencies(waits):
        ids = _delay_ids(waits, raw_ids)
        transport = _choose_transport(editor, rewrites.table(group.lookups[0].table), rewrites.terms.synchronous)
        deduplicated = deduplicate_ids(
            tables, [(table_of[x.node], i) for x, i in zip(group.lookups, ids, strict=True)], transport, from_end
        )
        routed = transport.pull(deduplicated.first, tables, deduplicated.bases)
        place_of = {x.node: i for i, x in enumerate(group.lookups)}
        exchange = _Exchange(number, group, transport, tables, table_of, place_of, deduplicated, routed)
        with tf.control_dependencies([_count(editor, exchange, "pull", deduplicated, routed)]):
            results = [
                gather_looked_up(routed.rows, deduplicated.positions[i], x, tables[table_of[n]].row_shape)
                for (n, i), x in zip(place_of.items(), ids, strict=True)
            ]
    for lookup, result, cut in zip(group.lookups, results, deduplicated.id_cuts, strict=True):
        if lookup.combines:
            with tf.name_scope(f"{SCOPE}/pull_{number}/"):
                every = tf.range(tf.size(editor.at(Edge(lookup.node, lookup.ids_slot))))
            ids_edge = Edge(lookup.node, lookup.ids_slot)
            editor.redirect([ids_edge], tf.cast(every, editor.at(ids_edge).dtype))
            editor.redirect([Edge(lookup.node, 0)], result)
        else:
            editor.become_identity(lookup.node, result)
        pushed_by = (p for p in rewrites.pushes if lookup.node in p.lookups)
        _may_be_cut(editor, cut, (lookup.node, *(n for p in pushed_by for n in push_nodes(p))))
    return exchange


def _delay_ids(waits: list[Operation], ids: Sequence[Tensor]) -> list[Tensor]:
    """Copies of ids that wait for other nodes; called within control dependencies on those nodes.

    Without a copy, only the constant shape of the first Reshape would have the control dependency, and TensorFlow's
    optimizer removes a redundant Reshape together with the dependencies of its shape.
    """
    waiting = {id(one): tf.identity(one) for one in ids} if waits else {}
    return [waiting.get(id(one), one) for one in ids]


def _ids_of(editor: Editor, rewrites: Rewrites, lookup: Lookup) -> tuple[Tensor, bool]:
    """The ids of a lookup, and whether negative ones must still be counted from the table's end.

    The latter only in graphs of front ends, where the ids in between are never fed.
    """
    ids, source = editor.at(Edge(lookup.node, lookup.ids_slot)), editor.view.inputs(lookup.node)[lookup.ids_slot]
    if rewrites.batches and not is_of_script(editor.view) and not lookup.combines and ids is editor.tensor(source):
        before = ids_before(editor.view, source, rewrites.table(lookup.table).rows)
        if before is not None:
            return editor.tensor(before), True
    return ids, False


def _rows_of(editor: Editor, table: Table, source: str, row_shape: tuple[int, ...]) -> TableRows:
    """The source of a table's rows: this worker's partition as `source` reads it, or all partitions on servers."""
    dtype = tf.dtypes.as_dtype(table.dtype)
    parts = editor.partitions[table.op] if table.servers else (editor.tensor(source),)
    devices = tuple(device_of(server) for server in table.servers)
    return TableRows(table.op, table.variable, table.rows, parts, dtype, row_shape, devices)


def _choose_transport(editor: Editor, table: Table, synchronous: bool) -> Transport:
    worker, wire = editor.worker, editor.wire
    ownership, meeting = table.ownership(worker.size), _find_merge_group(worker, table, synchronous)
    if table.servers:
        return ServerTransport(ownership, meeting, wire, _pushers(editor, table, synchronous))
    return WorkerTransport(ownership, meeting, wire, worker.rank)


def _find_merge_group(worker: Worker, table: Table, synchronous: bool) -> MergeGroup | None:
    """The workers that merge their requests, if there are any."""
    pattern, size = table.ownership(worker.size).pattern, len(worker.neighbours)
    fronts = _find_fronts(worker, table, synchronous)
    if fronts:
        return MergeGroup(WORKERS, worker.size, tuple(fronts[table.servers[partition]] for partition in pattern))
    if not worker.merges_in_host or not synchronous:
        return None
    places = range(size) if table.servers else requesters(worker.hosts, worker.hosts[worker.rank], pattern)
    return MergeGroup(HOST, size, tuple(places))


def _find_fronts(worker: Worker, table: Table, synchronous: bool) -> tuple[int, ...]:
    """For each server the worker that addresses it for all; empty where every worker does."""
    return server_fronts(worker.hosts, worker.servers) if synchronous and table.servers else ()


def _pushers(editor: Editor, table: Table, synchronous: bool) -> Pushers:
    worker = editor.worker
    fronts = _find_fronts(worker, table, synchronous)
    asks = [p for p, server in enumerate(table.servers) if not fronts or fronts[server] == worker.rank]
    return Pushers(tuple(asks), 1 if fronts else worker.size)


def _gather(editor: Editor, rewrites: Rewrites, exchange: _Exchange, members: list[int]) -> _GatheredRows:
    """The coalesced gradient rows of the pushes `members`, on the route of the pull, or on their own."""
    pushes = [rewrites.pushes[i] for i in members]
    with tf.name_scope(f"{SCOPE}/push_{exchange.number}/"):
        if rewrites.accumulated_gradients:
            return _gather_batch_rows(editor, rewrites, exchange, pushes)
        values, places = [], []
        for one in pushes:
            pieces = [_values(editor, rewrites, exchange, one), tf.concat(_places(editor, exchange, one), 0)]
            if one.batch:
                pieces = [editor.batch_weights[one.batch].counted_rows(piece) for piece in pieces]
            values.append(_cut_open(editor, pieces[0], one))
            places.append(_cut_open(editor, pieces[1], one))
        merged = merged_rows(exchange.ids, values, places)
        return _GatheredRows(exchange.transport.push(exchange.routed, merged), exchange.ids, exchange.routed, False)


def _gather_batch_rows(editor: Editor, rewrites: Rewrites, exchange: _Exchange, pushes: list[Push]) -> _GatheredRows:
    """Gradient rows of several batches, of which the pull of the last one has only a part."""
    transport, width = exchange.transport, push_width(editor.view, rewrites, pushes[0])
    ids = [editor.at(one.indices[0]) for one in pushes]
    tables = [exchange.table_of[one.lookups[0]] for one in pushes]
    deduplicated = deduplicate_ids(exchange.tables, list(zip(tables, ids, strict=True)), transport)
    for cut, one in zip(deduplicated.id_cuts, pushes, strict=True):
        _may_be_cut(editor, cut, push_nodes(one))
    values = []
    for one, push_ids in zip(pushes, ids, strict=True):
        rows = editor.at(one.values[0]) if one.values else tf.zeros([tf.raw_ops.Size(input=push_ids), width])
        values.append(_cut_open(editor, tf.reshape(rows, [-1, width]), one))
    routed = transport.announce(deduplicated.first, deduplicated.bases)
    merged = merged_rows(deduplicated, values, list(deduplicated.positions))
    return _GatheredRows(transport.push(routed, merged), deduplicated, routed, True)


def _cut_open(editor: Editor, tensor: Tensor, one: Push) -> Tensor:
    """An input of a push, which is fed an empty value where the push is not needed."""
    cut = open_end(tensor)
    _may_be_cut(editor, cut, push_nodes(one))
    return cut


def _send_gradient_rows(
    editor: Editor, rewrites: Rewrites, exchange: _Exchange, members: list[int], gathered: _GatheredRows
) -> list[tuple[Tensor, Tensor]]:
    """Sends the gradient rows of the pushes `members` to their owners (Transport.hand_over)."""
    tables = [exchange.table_of[_nodes(exchange, rewrites.pushes[i])[0]] for i in members]
    with tf.name_scope(f"{SCOPE}/push_{exchange.number}/"):
        count = partial(_count_push, editor, exchange, gathered)
        return exchange.transport.send_gradient_rows(gathered.routed, gathered.rows, gathered.ids.bases, tables, count)


def _places(editor: Editor, exchange: _Exchange, one: Push) -> list[Tensor]:
    """For each lookup of a push that this exchange pulled, the positions of its pulled rows, `[n]`."""
    places = []
    for node, searched in zip(one.lookups, one.searched, strict=True):
        if node not in exchange.place_of:
            continue
        if searched:
            ids = editor.tensor(searched)
            places.append(locate_ids(exchange.ids, exchange.table_of[node], ids, exchange.transport.slots))
        else:
            places.append(exchange.ids.positions[exchange.place_of[node]])
    return places


def _values(editor: Editor, rewrites: Rewrites, exchange: _Exchange, one: Push) -> Tensor:
    """The gradient rows `[n, width]` of those lookups of a push that this exchange pulled."""
    width = push_width(editor.view, rewrites, one)
    if not one.values:
        return tf.zeros([tf.add_n([tf.size(place) for place in _places(editor, exchange, one)]), width])
    rows = tf.reshape(editor.at(one.values[0]), [-1, width])
    if set(one.lookups) <= exchange.place_of.keys():
        return rows
    ids = [editor.tensor(editor.view.inputs(node)[1]) for node in one.lookups]
    counted = [editor.tensor(s) if s else i for s, i in zip(one.searched, ids, strict=True)]
    pieces = tf.split(rows, [tf.size(piece) for piece in counted])
    return tf.concat([p for p, node in zip(pieces, one.lookups, strict=True) if node in exchange.place_of], 0)


def _deliver(editor: Editor, one: Push, pieces: list[tuple[Tensor, Tensor]], table_row: tuple[int, ...]) -> None:
    """Redirects the update to the rows that arrived, in its shape and type; of unknown shape, in that of the table."""
    with tf.name_scope(f"{SCOPE}/deliver/{one.table}/"):
        values = tf.concat([v for v, _ in pieces], 0) if len(pieces) > 1 else pieces[0][0]
        indices = tf.concat([i for _, i in pieces], 0) if len(pieces) > 1 else pieces[0][1]
        if one.merge:
            values, indices = merge_equal_rows(values, indices)
        editor.redirect(one.indices, tf.cast(indices, editor.at(one.indices[0]).dtype))
        if one.values:
            static = editor.at(one.values[0]).shape
            row_shape = static.as_list()[1:] if static.rank and None not in static.as_list()[1:] else table_row
            editor.redirect(one.values, tf.reshape(values, [-1, *row_shape]))


def _may_be_cut(editor: Editor, tensor: Tensor, needed_by: tuple[str, ...]) -> None:
    shape = tuple(0 if length is None else length for length in tensor.shape.as_list())
    editor.cuts.append(
        Cut(str(tensor.name), shape, str(tensor.dtype.as_numpy_dtype.__name__), tuple(dict.fromkeys(needed_by)))
    )


def _count_push(editor: Editor, exchange: _Exchange, gathered: _GatheredRows) -> Operation:
    return _count(editor, exchange, "push", gathered.ids, gathered.routed, gathered.names_rows, gathered.rows)


def _count(
    editor: Editor,
    exchange: _Exchange,
    kind: str,
    deduplicated: DeduplicatedIds,
    routed: RoutedKeys,
    names_rows: bool = True,
    rows: Tensor = None,
) -> Operation:
    """Counts one run: distinct rows by table, those requested from owners, and the number of these that leave.

    Where `rows` are sent, the count waits for them: in a branch that is not taken nothing is sent.
    """
    transport = exchange.transport
    requests = transport.requests(deduplicated.first, routed.last, _mark_remote_workers(editor.worker))
    splits, away = requests.splits, requests.remote
    asked_for, left = tf.reduce_sum(splits), tf.reduce_sum(splits * tf.constant(away, tf.int32))
    of_id = id_bytes([t.rows for t in exchange.tables], transport.slots) if names_rows else 0
    width = math.prod(exchange.tables[0].row_shape) if rows is None else int(rows.shape[1])
    counter = Counter(
        tensor="",
        kind=kind,
        variables=tuple(t.variable for t in exchange.tables),
        row_bytes=width * editor.wire.rows_type(exchange.tables[0].dtype).size,
        id_bytes=transport.push_id_bytes(of_id) if kind == "push" else of_id,
        trains=bool(exchange.group.sites),
        route=transport.route,
        remote_fraction=sum(away[one] for one in requests.destination_of_slot) / len(requests.destination_of_slot),
    )
    with tf.control_dependencies([rows] if rows is not None else []):
        return add_counter(editor, counter, [*tf.unstack(deduplicated.distinct, len(exchange.tables)), asked_for, left])


def _mark_remote_workers(worker: Worker) -> list[int]:
    """For each worker 1 if messages to it leave this host, or, on one host, this process; else 0."""
    here = worker.neighbours if len(set(worker.hosts)) > 1 else (worker.rank,)
    return [int(rank not in here) for rank in range(worker.size)]
