"""The communicating units and their links, as measured: the input of a route's cost in seconds.

On several hosts a *unit* is a host with its link, and lines are those across hosts. On one host a unit is a process,
without a link, and lines are those within a host. Among identical units only the one with the slowest link in a
direction can dominate, so the others are left out: a phase lasts as long as its busiest end.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from parallax.analysis.routes.owners import Shares
from parallax.cluster.profiles import AlphaBeta, ClusterProfile
from parallax.plans.plan import ALLGATHER, ALLREDUCE, ALLTOALL, PS, Layout, PlanConstraints, server_fronts
from parallax.plans.sum_methods import SumRule, stated_rules

OUT, IN = 0, 1
OPERATIONS_BY_ROUTE = {
    ALLREDUCE: ("allreduce",),
    ALLGATHER: ("allgather",),
    ALLTOALL: ("alltoall",),
    PS: ("pull", "push"),
}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A host, or a process where there is one host.

    Attributes:
        host: its number.
        workers: of it.
        share: the share of the rows of a sharded table that it owns.
        top_share: the largest share of one of its workers.
        servers: the numbers of its servers.
        rates: bytes per second of its link, out and in; None without a link.
    """

    host: int
    workers: int
    share: float
    top_share: float
    servers: tuple[int, ...]
    rates: tuple[float | None, float | None]


@dataclass(frozen=True, slots=True)
class Topology:
    """The topology for which routes are priced.

    Attributes:
        layout: the workers and servers.
        shares: the owners' shares of sharded tables.
        ends: the units and directions (OUT, IN) that may be the bottleneck.
        units_by_workers: (workers, number of units with that many).
        lines: operation -> fit between units.
        within: fit of an all-to-all within a host; None when it is not needed, or was not measured.
        merging: workers of the largest host where the workers of a host merge their requests; else 1.
        has_fronts: whether servers get row requests from the workers of their hosts alone (parallax/plans/plan.py).
        servers: the number of servers on which variables may be.
        ends_of_host: for each host, the ends of its link, out and in; empty on one host.
        sum_rules: the methods of all-reduces, by message size.
    """

    layout: Layout
    shares: Shares
    ends: tuple[tuple[Endpoint, int], ...]
    units_by_workers: tuple[tuple[int, int], ...]
    lines: dict[str, AlphaBeta]
    within: AlphaBeta | None
    merging: int
    has_fronts: bool
    servers: int
    ends_of_host: tuple[tuple[int, int], ...]
    sum_rules: tuple[SumRule, ...]

    @property
    def workers(self) -> int:
        """The number of workers, W."""
        return self.layout.num_workers

    def missing(self, route: str) -> tuple[str, ...]:
        """The missing measurements that the prediction of a route needs."""
        if self.workers == 1 and route != PS:
            return ()
        where = "across hosts" if len(self.layout.hosts) > 1 else "within a host"
        needed = (*OPERATIONS_BY_ROUTE[route], *(["alltoall"] if route == PS and self.has_fronts else []))
        missing_lines = [f"{operation} {where}" for operation in needed if operation not in self.lines]
        if self.merging > 1 and route in (ALLTOALL, PS) and self.within is None:
            missing_lines.append("alltoall within a host")
        return tuple(missing_lines)


def build_topology(
    layout: Layout, cluster: ClusterProfile, shares: Shares, constraints: PlanConstraints, servers: bool
) -> Topology:
    """The topology for which the routes of a job are priced.

    Args:
        layout: the workers, and the servers that may be started.
        cluster: the measurements of the hosts, in the order of the layout.
        shares: the owners' shares of sharded tables.
        constraints: whether training is synchronous, and the workers of a host merge their requests.
        servers: whether any variable may be on servers; else their placement makes no difference.
    """
    several = len(layout.hosts) > 1
    units = _hosts(layout, cluster, shares) if several else _processes(layout, shares)
    merging = max(layout.hosts) if several and constraints.merges_in_host else 1
    lines = dict(cluster.across if several else cluster.within)
    sums = cluster.sums_of(layout.hosts)
    if sums is not None:
        lines["allreduce"] = sums.line
    ends = tuple((unit, end) for end in (OUT, IN) for unit in _find_bottleneck_candidates(units, end, servers))
    place = {(_make_key(unit, servers), end): number for number, (unit, end) in enumerate(ends)}
    return Topology(
        layout=layout,
        shares=shares,
        ends=ends,
        units_by_workers=tuple(sorted(Counter(unit.workers for unit in units).items())),
        lines=lines,
        within=cluster.within.get("alltoall"),
        merging=merging,
        has_fronts=constraints.synchronous and bool(server_fronts(layout.host_by_rank, layout.servers)),
        servers=len(layout.servers) if servers else 0,
        ends_of_host=tuple(
            (place[_make_key(u, servers), OUT], place[_make_key(u, servers), IN]) for u in units * several
        ),
        sum_rules=stated_rules(layout.hosts) if sums is None else sums.rules.rules,
    )


def _hosts(layout: Layout, cluster: ClusterProfile, shares: Shares) -> list[Endpoint]:
    servers: list[list[int]] = [[] for _ in layout.hosts]
    for number, host in enumerate(layout.servers):
        servers[host].append(number)
    owned: list[list[float]] = [[] for _ in layout.hosts]
    for host, share in zip(layout.host_by_rank, shares.by_worker, strict=True):
        owned[host].append(share)
    return [
        Endpoint(
            host,
            workers,
            sum(owned[host]),
            max(owned[host], default=0.0),
            tuple(servers[host]),
            (cluster.hosts[host].out_bytes_per_s, cluster.hosts[host].in_bytes_per_s),
        )
        for host, workers in enumerate(layout.hosts)
    ]


def _processes(layout: Layout, shares: Shares) -> list[Endpoint]:
    workers = [Endpoint(0, 1, share, share, (), (None, None)) for share in shares.by_worker]
    return workers + [Endpoint(0, 0, 0.0, 0.0, (number,), (None, None)) for number in range(len(layout.servers))]


def _find_bottleneck_candidates(units: list[Endpoint], end: int, servers: bool) -> list[Endpoint]:
    """Among identical units the slowest in a direction; the first of equal ones."""
    slowest: dict[tuple[object, ...], Endpoint] = {}
    for unit in units:
        key = _make_key(unit, servers)
        known = slowest.get(key)
        if known is None or (unit.rates[end] or 0.0) < (known.rates[end] or 0.0):
            slowest[key] = unit
    return list(slowest.values())


def _make_key(unit: Endpoint, servers: bool) -> tuple[object, ...]:
    """A key that is equal for units that carry equal bytes."""
    return unit.workers, round(unit.share, 12), unit.servers if servers else ()
