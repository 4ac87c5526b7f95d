"""Finds the nodes that run on servers: those that store, compute or write rows of a table whose owners are servers.

These nodes run where the partitions are, once for each partition. Lookups, and reads of a copy, do not. A variable that
is not looked up by row is mirrored: its readers in a worker get the full value (`same`), and only its writers operate
on `rows`. A dense gradient of a mirrored variable is scattered where it leaves autodiff; all later ops see `rows` and
run at the owners.

State on servers must be overwritten only after all workers have read its previous value. Worker 0 alone drives the
writes of a table on servers, and the other workers read after it has signalled them. A write follows their reads where
it depends on a value that all workers contribute to, such as a gradient. Where a write waits for worker 0's reads
alone, as a weight decay before the update, another worker may read too late: such a table cannot be on servers.
"""

from __future__ import annotations

from collections.abc import Iterable

from parallax.analysis.propagation.states import Handle
from parallax.analysis.propagation.walk import NoRule, Walk, server_table
from parallax.graph.ops import state_op
from parallax.graph.view import Edge, node_of
from parallax.plans.layouts import Partial, Sharded
from parallax.plans.rewrites import Push, ServerNode

_ASKS_FOR_THE_VARIABLE = ("VarIsInitializedOp", "IsVariableInitialized", "DestroyResourceOp")


def find_owned_nodes(walk: Walk) -> tuple[ServerNode, ...]:
    """The nodes that, by a finished traversal, run where the partitions are, in topological order."""
    if not any(table.servers for table in walk.facts.tables.values()):
        return ()
    elsewhere = {lookup.node for lookup in walk.lookups} | {shape.node for shape in walk.shapes}
    gathered = {edge for _, edges in walk.gathers.values() for edge in edges}
    owned = []
    for node in walk.view.topological_order():
        op = walk.view.op(node)
        if node in elsewhere or node in walk.facts.captured.variables or op in _ASKS_FOR_THE_VARIABLE:
            continue
        writes = state_op(op, len(walk.view.inputs(node))) is not None
        tables = [server_table(walk, walk.states[tensor]) for tensor in walk.view.outputs(node)]
        for slot in range(len(walk.view.inputs(node))):
            if (node, slot) not in gathered:
                tables.append(_find_table(walk, node, slot, writes))
        table = next((t for t in tables if t), "")
        if table:
            owned.append(ServerNode(node, table, writes, node in walk.facts.initial))
    return tuple(owned)


def _find_table(walk: Walk, node: str, slot: int, writes: bool) -> str:
    """The table on servers whose rows this node reads here."""
    state = walk.state_at(node, slot)
    if not isinstance(state, Handle):
        return server_table(walk, state)
    variable = state.variable
    table = walk.assumptions.table_of.get(variable, "")
    if not table or not walk.facts.tables[table].servers or (walk.is_mirrored(variable) and not writes):
        return ""
    return table


def check_reads(walk: Walk, owned: Iterable[ServerNode], pushes: Iterable[Push]) -> None:
    """Checks a finished traversal of synchronous training.

    Args:
        walk: the traversal.
        owned: the nodes that run on servers.
        pushes: the pushes of gradient rows to their owners.

    Raises:
        NoRule: a worker may read a table too late.
    """
    nodes = tuple(owned)
    writes_by_table: dict[str, list[str]] = {}
    for one in nodes:
        if one.writes and not one.initial:
            writes_by_table.setdefault(one.table, []).append(one.node)
    met = [(one.tensor, edge) for one in walk.scatters for edge in one.edges]
    met += [(one.tensor, edge) for one in walk.all_reduces for edge in one.edges]
    met += _find_changes(walk)
    met += [(_find_tensor(walk, edge), edge) for push in pushes for edge in (*push.values, *push.indices)]
    at_servers = {one.node for one in nodes}
    matters = _find_what_matters(walk, [node_of(tensor) for tensor, _ in met], at_servers)
    for table, writes in writes_by_table.items():
        for reader in _find_readers(walk, table):
            if reader in matters and reader not in at_servers:
                _check_reader(walk, table, reader, writes, met)


def _find_changes(walk: Walk) -> list[tuple[str, Edge]]:
    """Tensors that a layout change reduces or gathers over the workers, and the edges that read the result."""
    changes = walk.facts.layouts.rewrites.changes if walk.facts.layouts is not None else ()
    return [(one.tensor, e) for one in changes if isinstance(one.before, Partial | Sharded) for e in one.edges]


def _check_reader(walk: Walk, table: str, reader: str, writes: list[str], met: list[tuple[str, Edge]]) -> None:
    """Requires that every write after a read also depends on a value that all workers computed from the read."""
    after_read = walk.view.descendants([reader], waits=True)
    takers = [edge.node for tensor, edge in met if node_of(tensor) in after_read]
    after_all = walk.view.descendants(takers, waits=True)
    for write in writes:
        if write in after_read and write not in after_all:
            raise NoRule(
                table,
                f"{walk.view.op(write)} {write!r} writes it when only worker 0 is known to have read it ({reader!r})",
            )


def _find_what_matters(walk: Walk, nodes: list[str], at_servers: set[str]) -> set[str]:
    """The nodes on which a worker's contributions and local state depend; only worker 0's requests to servers count."""
    skipped = at_servers | walk.facts.initial
    remaining = [
        node
        for node in walk.view.nodes
        if node not in skipped and state_op(walk.view.op(node), len(walk.view.inputs(node)))
    ]
    return walk.view.ancestors([*nodes, *remaining])


def _find_readers(walk: Walk, table: str) -> list[str]:
    """The nodes that read a table for a worker: those that read its handle or reference, and write nothing."""
    view, readers = walk.view, [lookup.node for lookup in walk.lookups if lookup.table == table]
    for edge in view.consumers(f"{table}:0"):
        if state_op(view.op(edge.node), len(view.inputs(edge.node))) is None and edge.node not in readers:
            readers.append(edge.node)
    return readers


def _find_tensor(walk: Walk, edge: Edge) -> str:
    return walk.view.inputs(edge.node)[edge.slot]
