"""Proposes islands: hosts whose links to each other are several times faster than their links to all others."""

from __future__ import annotations

from collections.abc import Sequence

from parallax.cluster.machines import Cluster

FASTER = 4.0
"""The least ratio of the slowest link within islands to the fastest between them."""


def find_islands(pairs: Sequence[Sequence[float]]) -> list[list[int]]:
    """The fewest islands of hosts, of which one has several; empty where no links are so much faster than others.

    Args:
        pairs: the rate of the link between every two hosts, by the numbers of both.
    """
    hosts = range(len(pairs))
    for least in sorted({pairs[a][b] for a in hosts for b in range(a)}):
        island_of = list(hosts)
        for a in hosts:
            for b in range(a):
                if pairs[a][b] >= least:
                    island_of = [island_of[b] if one == island_of[a] else one for one in island_of]
        within = [pairs[a][b] for a in hosts for b in range(a) if island_of[a] == island_of[b]]
        between = [pairs[a][b] for a in hosts for b in range(a) if island_of[a] != island_of[b]]
        if between and min(within) >= FASTER * max(between):
            return [[host for host in hosts if island_of[host] == one] for one in dict.fromkeys(island_of)]
    return []


def proposal_text(cluster: Cluster, pairs: Sequence[Sequence[float]]) -> str:
    """The lines of a resource file that name the islands; empty where there are none, or it names some already."""
    found = find_islands(pairs) if cluster.num_islands == 1 else []
    if not found:
        return ""
    lines = [
        f"Links between these hosts are at least {FASTER:.0f} times as fast within islands as between. A resource file "
        "names them so (docs/islands.md says when they pay):"
    ]
    for number, island in enumerate(found):
        for host in (cluster.hosts[one] for one in island):
            workers = f"workers: {host.num_workers}, " if host.num_workers else ""
            lines.append(f"- {{address: {host.address}, {workers}island: island{number}}}")
    if len({sum(cluster.hosts[one].num_workers for one in island) for island in found}) > 1:
        lines.append("Islands must have equally many workers: change these numbers.")
    return "".join(f"{line}\n" for line in lines)
