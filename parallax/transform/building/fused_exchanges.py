"""Decides which lookups share one pull and which pushes share one exchange.

Each exchange costs three sequential rounds. Lookups of equal width, type and owners are fused when none can depend on
another: they have the same *level* (the number of exchanges that must precede them), wait for the same nodes, and have
the same pushes. A lookup whose ids come from the rows of another has the next level. Pushes at one level, one for each
table, travel together as a *site*. A table on servers shares a pull with no other, as nothing is gained. Parts of a
fused exchange that a fetch does not need are fed empty tensors (editor.Cut), so fusing never requires additional feeds.

Of the workers on a host, one requests rows from each owner on behalf of all (`requesters`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from parallax.graph.control_flow import Branches, branches_of
from parallax.graph.view import GraphView, node_of
from parallax.plans.rewrites import Lookup, Push, Rewrites


@dataclass(frozen=True, slots=True)
class PushSite:
    """Pushes that travel together: at one level, one for each table, of one width, in the same branches."""

    level: int
    ordinal: int
    branches: Branches = ()
    width: int = 0


@dataclass(frozen=True, slots=True)
class PullGroup:
    """Lookups that share one exchange.

    Attributes:
        lookups: in the order of the graph.
        sources: the tensors of the rows (a table's handle or value), one for each table of the exchange.
        sites: the pushes that return on the same route.
    """

    lookups: tuple[Lookup, ...]
    sources: tuple[str, ...]
    sites: tuple[PushSite, ...]


@dataclass(frozen=True, slots=True)
class FusedExchanges:
    """All pulls, and the site of every push (by its index in the decisions)."""

    pulls: tuple[PullGroup, ...]
    sites: tuple[PushSite, ...]


def group(view: GraphView, rewrites: Rewrites) -> FusedExchanges:
    """Groups the lookups and pushes of one graph; the same on every worker."""
    levels = _levels(view, rewrites)
    sites = _sites(view, rewrites, levels)
    used_by: dict[str, set[PushSite]] = {}
    for push, site in zip(rewrites.pushes, sites, strict=True):
        for node in push.lookups:
            used_by.setdefault(node, set()).add(site)
    tables = {t.op: t for t in rewrites.tables}
    lookups_by_key: dict[tuple[Any, ...], list[Lookup]] = {}
    for lookup in rewrites.lookups:
        table = tables[lookup.table]
        used = tuple(sorted(used_by.get(lookup.node, ()), key=lambda s: (s.level, s.ordinal, s.branches, s.width)))
        waits = tuple(sorted(view.controls(lookup.node)))
        alone = table.op if table.servers else ""  # tables on servers have nothing to share
        key = (table.dtype, math.prod(lookup.row_shape), levels[lookup.node], waits, used, alone, table.pattern)
        lookups_by_key.setdefault(key, []).append(lookup)
    pulls = []
    for key, lookups in lookups_by_key.items():
        sources = tuple(dict.fromkeys(view.inputs(lookup.node)[0] for lookup in lookups))
        pulls.append(PullGroup(tuple(lookups), sources, key[4]))
    return FusedExchanges(tuple(pulls), sites)


def push_nodes(push: Push) -> tuple[str, ...]:
    """The nodes of the user's graph that read the results of a push."""
    return tuple(dict.fromkeys(edge.node for edge in (*push.values, *push.indices)))


def push_width(view: GraphView, rewrites: Rewrites, push: Push) -> int:
    """The number of elements of a row in a push: those of the table, or of a slot that reads it."""
    edges = push.values
    shape = view.shape(view.inputs(edges[0].node)[edges[0].slot]) if edges else None
    if shape is None or None in shape[1:]:
        return math.prod(rewrites.table(push.table).row_shape)
    return math.prod(length or 0 for length in shape[1:])


def _levels(view: GraphView, rewrites: Rewrites) -> dict[str, int]:
    """For every node the number of sequential exchanges that must precede its outputs."""
    also_needs: dict[str, set[str]] = {}
    for push in rewrites.pushes:
        for node in push_nodes(push):
            also_needs.setdefault(node, set()).update(push.lookups)
    exchanges = {lookup.node for lookup in rewrites.lookups} | also_needs.keys()
    after = view.descendants(exchanges, waits=True)
    order = [node for node in view.topological_order() if node in after]
    levels: dict[str, int] = {}
    while True:  # a push may precede its pull in the user's order; the levels then need another round
        before, is_in_order = dict(levels), True
        for node in order:
            needed = [n for n in (*view.nodes_before(node), *also_needs.get(node, ())) if n in after]
            known = [levels[n] for n in needed if n in levels]
            is_in_order = is_in_order and len(known) == len(needed)
            levels[node] = max(known, default=0) + (node in exchanges)
        if levels == before or (not before and is_in_order):
            return dict.fromkeys(view.nodes, 0) | levels


def _sites(view: GraphView, rewrites: Rewrites, levels: dict[str, int]) -> tuple[PushSite, ...]:
    sites, seen_nodes = [], set()
    branches = branches_of(view)
    for push in rewrites.pushes:
        edges = (*push.values, *push.indices)
        before = [levels[node_of(view.inputs(e.node)[e.slot])] for e in edges]
        before += [levels[node] for node in push.lookups]
        site = PushSite(1 + max(before), 0, branches[edges[0].node], push_width(view, rewrites, push))
        while (push.table, site) in seen_nodes:
            site = replace(site, ordinal=site.ordinal + 1)
        seen_nodes.add((push.table, site))
        sites.append(site)
    return tuple(sites)


def requesters(hosts: Sequence[int], host: int, pattern: Sequence[int]) -> tuple[int, ...]:
    """For each slot of a pattern of owners, the worker of a host that requests its rows.

    Owners on the host request their own rows, which do not leave the process. Each other slot goes to the worker with
    the fewest requests so far and, among equals, to the one at the owner's position on this host.

    Args:
        hosts: the number of each worker's host.
        host: the number of the requesting host.
        pattern: the owner of each slot.

    Returns:
        `[P]`, positions on the host, from 0.
    """
    members = [rank for rank, number in enumerate(hosts) if number == host]
    asks = [pattern.count(rank) for rank in members]
    ranks = []
    for owner in pattern:
        if owner in members:
            ranks.append(members.index(owner))
            continue
        near = sum(number == hosts[owner] for number in hosts[:owner]) % len(members)
        ranks.append(min((asks[place], place != near, place) for place in range(len(members)))[2])
        asks[ranks[-1]] += 1
    return tuple(ranks)
