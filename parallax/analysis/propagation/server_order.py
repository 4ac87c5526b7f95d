"""Says that what servers hold is written anew only when all workers have read what was there before.

Worker 0 alone drives the writes of a table on servers, and the others read when it has told them. A second write in a
step comes after their reads where it depends on what all workers make of these, as on a gradient. Where it depends on
worker 0's alone, another worker may read too late: such a table cannot be on servers.
"""

from __future__ import annotations

from collections.abc import Iterable

from parallax.analysis.propagation.walk import NoRule, Walk
from parallax.graph.ops import state_op
from parallax.graph.view import Edge, split_tensor
from parallax.plans.rewrites import Owned, Push


def check_reads(walk: Walk, owned: Iterable[Owned], pushes: Iterable[Push]) -> None:
    """Checks a finished walk of synchronous training.

    Args:
        walk: the walk.
        owned: what runs on servers.
        pushes: the ways of gradient rows to their owners.

    Raises:
        NoRule: a worker may read a table too late.
    """
    nodes = tuple(owned)
    writes_by_table: dict[str, list[str]] = {}
    for one in nodes:
        if one.writes and not one.initial:
            writes_by_table.setdefault(one.table, []).append(one.node)
    several = {table: writes for table, writes in writes_by_table.items() if len(writes) > 1}
    if not several:
        return
    met = [(one.tensor, edge) for one in walk.scatters for edge in one.edges]
    met += [(one.tensor, edge) for one in walk.all_reduces for edge in one.edges]
    met += [(_tensor(walk, edge), edge) for push in pushes for edge in (*push.values, *push.indices)]
    at_servers = {one.node for one in nodes}
    matters = _what_matters(walk, [split_tensor(tensor)[0] for tensor, _ in met], at_servers)
    for table, writes in several.items():
        readers = [node for node in _readers(walk, table) if node in matters and node not in at_servers]
        for write in writes if walk.view.ancestors(readers) & set(writes) else ():
            _check_write(walk, table, write, writes, readers, met)


def _check_write(
    walk: Walk, table: str, write: str, writes: list[str], readers: list[str], met: list[tuple[str, Edge]]
) -> None:
    before = walk.view.ancestors([write])
    earlier = {one for one in writes if one != write and one in before}
    for reader in readers if earlier else ():
        if reader not in before or not earlier & walk.view.ancestors([reader]):
            continue
        after_all = (split_tensor(tensor)[0] for tensor, edge in met if edge.node in before)
        if not any(reader in walk.view.ancestors([node]) for node in after_all):
            raise NoRule(
                table,
                f"{walk.view.op(write)} {write!r} writes it again when worker 0 alone is known to have read it "
                f"({reader!r}) after the write before",
            )


def _what_matters(walk: Walk, given: list[str], at_servers: set[str]) -> set[str]:
    """What every worker needs for what it gives to all or keeps; what servers are told counts from worker 0 alone."""
    skipped = at_servers | walk.known.initial
    kept = [
        node
        for node in walk.view.nodes
        if node not in skipped and state_op(walk.view.op(node), len(walk.view.inputs(node)))
    ]
    return walk.view.ancestors([*given, *kept])


def _readers(walk: Walk, table: str) -> list[str]:
    """The nodes that read a table for a worker: those that take its handle or reference, and write nothing."""
    view, found = walk.view, [lookup.node for lookup in walk.lookups if lookup.table == table]
    for edge in view.consumers(f"{table}:0"):
        if state_op(view.op(edge.node), len(view.inputs(edge.node))) is None and edge.node not in found:
            found.append(edge.node)
    return found


def _tensor(walk: Walk, edge: Edge) -> str:
    return walk.view.inputs(edge.node)[edge.slot]
