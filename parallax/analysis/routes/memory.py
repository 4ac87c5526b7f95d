"""Computes the memory of every process, and checks that hosts have enough.

Simplified: the buffers of all exchanges are in use at once. The memory that a step's ops need is not included
(live_bytes.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from parallax.analysis.routes.cost import id_bytes
from parallax.analysis.routes.count_touched import TouchedRowCount
from parallax.analysis.routes.owners import Shares
from parallax.base.errors import NotEnoughMemory
from parallax.cluster.plan_inputs import PlanInputs
from parallax.graph.spec import VariableClass, VariableSpec
from parallax.plans.plan import ALLGATHER, ALLREDUCE, ALLTOALL, PS, Layout, PlanConstraints
from parallax.plans.prediction import ProcessMemory
from parallax.report.text import bytes_text

_KEPT_ID_BYTES = 8
"""Bytes of a row number that is accumulated with its gradient: as it comes from the graph, at most."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of one variable on a route, values with slots first, then buffers of its exchange.

    Attributes:
        copies: in every worker.
        spread: over the workers, each by its share of the rows.
        served: over the servers, each by its share.
        copied_buffers: in every worker.
        spread_buffers: over the workers, by share.
        served_buffers: over the servers.
        servers: number of a server -> its share of the rows.
    """

    copies: float = 0.0
    spread: float = 0.0
    served: float = 0.0
    copied_buffers: float = 0.0
    spread_buffers: float = 0.0
    served_buffers: float = 0.0
    servers: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Hosts:
    """Hosts that may be short of memory: among identical ones the one with the least.

    Attributes:
        indices: of these hosts.
        limits: bytes available to their processes, besides those of the model.
        workers: of each.
        shares: of the rows of a sharded table, for each.
        servers: the servers of each.
    """

    indices: tuple[int, ...]
    limits: tuple[float, ...]
    workers: tuple[int, ...]
    shares: tuple[float, ...]
    servers: tuple[tuple[int, ...], ...]

    def bytes_of(self, footprint: Footprint) -> NDArray[np.float64]:
        """The memory of a variable on each of these hosts."""
        bytes_by_server = dict(footprint.servers)
        served = footprint.served + footprint.served_buffers
        return np.array(
            [
                workers * (footprint.copies + footprint.copied_buffers)
                + share * (footprint.spread + footprint.spread_buffers)
                + (sum(bytes_by_server.get(server, 0.0) for server in servers) * served if bytes_by_server else 0.0)
                for workers, share, servers in zip(self.workers, self.shares, self.servers, strict=True)
            ]
        )


def footprint(
    variable: VariableSpec,
    route: str,
    touched: TouchedRowCount | None,
    workers: int,
    servers: tuple[tuple[int, ...], ...] = (),
    batches: int = 1,
) -> Footprint:
    """The memory of a variable on a route; buffers of rows are left out where touched rows are unknown.

    For all batches of an update but the last, gradients are accumulated: a dense one's sum, or all rows.

    A worker stores the gradient and its sum for allreduce; all workers' rows and its own for allgather. For owners it
    stores the pulled rows and the pushed gradient rows, and an owner as much again for requests; a server stores the
    sum of a gradient and the incoming ones. The memory that workers of a host share for all-reduces is left out: at
    most 4 MB of a message for each of them, and for the sum.
    """
    routed = _of_route(variable, route, touched, workers, servers, 0.0 if touched is None else touched.of(batches))
    if batches < 2 or not variable.gradients:
        return routed
    accumulator_bytes = float(variable.value_bytes)
    if variable.has_slices and variable.cls != VariableClass.MIXED:
        looked_up = 0.0 if touched is None else touched.ids
        accumulator_bytes = (batches - 1) * looked_up * (_KEPT_ID_BYTES + variable.width * variable.dtype_bytes)
    return replace(routed, copied_buffers=routed.copied_buffers + accumulator_bytes)


def _of_route(
    variable: VariableSpec,
    route: str,
    touched: TouchedRowCount | None,
    workers: int,
    servers: tuple[tuple[int, ...], ...],
    pushed: float,
) -> Footprint:
    """The memory of a variable on a route, for gradients of `pushed` rows, without other batches' accumulated ones."""
    values = variable.value_bytes + variable.slots_bytes
    of_id, of_row = id_bytes(variable, workers), variable.width * variable.dtype_bytes
    rows = 0.0 if touched is None else touched.one
    if route == ALLREDUCE:
        counts = variable.rows * variable.dtype_bytes if variable.has_slices else 0
        return Footprint(copies=values, copied_buffers=2 * (variable.sums * variable.value_bytes + counts))
    if route == ALLGATHER:
        return Footprint(copies=values, copied_buffers=(workers + 1) * pushed * (of_id + variable.sums * of_row))
    if route == ALLTOALL:
        buffers = rows * (of_id + of_row) + pushed * variable.sums * of_row
        return Footprint(spread=values, copied_buffers=buffers, spread_buffers=workers * buffers)
    if route != PS:
        return Footprint(copies=values)
    server_bytes = shares_on_servers(variable, servers)
    if variable.cls != VariableClass.SPARSE:
        whole = variable.value_bytes
        return Footprint(
            copies=whole if variable.gradients else 0,
            served=values,
            copied_buffers=whole,
            served_buffers=2 * whole,
            servers=server_bytes,
        )
    sent = 8 + variable.sums * of_row
    return Footprint(
        served=values,
        copied_buffers=rows * (of_id + of_row) + pushed * sent,
        served_buffers=(workers + 1) * pushed * sent,
        servers=server_bytes,
    )


def shares_on_servers(variable: VariableSpec, servers: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, float], ...]:
    """The share of a variable's rows on each server that stores any."""
    bytes_by_server: dict[int, float] = {}
    for of_part, part in zip(servers, variable.parts, strict=False):
        for server in of_part:
            bytes_by_server[server] = bytes_by_server.get(server, 0.0) + part.rows / max(variable.rows, 1) / len(
                of_part
            )
    return tuple(sorted(bytes_by_server.items()))


def hosts_of(
    layout: Layout, shares: Shares, constraints: PlanConstraints, measured: PlanInputs, servers: bool
) -> Hosts:
    """The hosts whose memory limits a plan; none where no limit is known.

    Args:
        layout: the workers, and the servers that may be started.
        shares: the owners' shares of sharded tables.
        constraints: may limit every host.
        measured: the hosts' memory, and that of the model in every worker.
        servers: whether any variable may be on servers.
    """
    model = (measured.model.memory_bytes or 0) if measured.model is not None else 0
    owned = [0.0] * len(layout.hosts)
    for host, share in zip(layout.host_by_rank, shares.by_worker, strict=True):
        owned[host] += share
    least: dict[tuple[object, ...], tuple[float, int]] = {}
    here: list[tuple[int, ...]] = []
    for host, workers in enumerate(layout.hosts):
        here.append(tuple(n for n, at in enumerate(layout.servers) if at == host) if servers else ())
        known = [m for m in (constraints.memory_bytes,) if m is not None]
        if measured.cluster is not None:
            known.append(measured.cluster.hosts[host].memory_bytes)
        if known:
            key = (workers, round(owned[host], 12), here[host])
            limit = min(known) - workers * model
            least[key] = min(least.get(key, (limit, host)), (limit, host))
    limited_hosts = sorted((host, limit) for limit, host in least.values())
    return Hosts(
        indices=tuple(host for host, _ in limited_hosts),
        limits=tuple(float(limit) for _, limit in limited_hosts),
        workers=tuple(layout.hosts[host] for host, _ in limited_hosts),
        shares=tuple(owned[host] for host, _ in limited_hosts),
        servers=tuple(here[host] for host, _ in limited_hosts),
    )


def check_fits(hosts: Hosts, takes: Mapping[str, Sequence[NDArray[np.float64]]], names: Sequence[str]) -> None:
    """Refuses a graph that cannot fit, whatever is chosen.

    Args:
        hosts: the limiting hosts.
        takes: variable -> the memory of each of its options on these hosts.
        names: of all hosts, for messages; may be empty.

    Raises:
        NotEnoughMemory: some host has not enough memory for the smallest option of every variable.
    """
    for place, (host, limit) in enumerate(zip(hosts.indices, hosts.limits, strict=True)):
        least = {name: min(float(option[place]) for option in options) for name, options in takes.items()}
        needed = sum(least.values())
        if needed > limit:
            largest = max(sorted(least), key=lambda name: least[name])
            raise make_memory_error(largest, least[largest], needed, limit, names[host] if names else f"host {host}")


def make_memory_error(variable: str, its_bytes: float, needed: float, limit: float, where: str) -> NotEnoughMemory:
    """The error of a host that is too small."""
    return NotEnoughMemory(
        f"Not enough memory on {where}: the variables need at least {bytes_text(round(needed))} ({round(needed)} "
        f"bytes), of which {variable} takes {bytes_text(round(its_bytes))}, but only "
        f"{bytes_text(max(0, round(limit)))} ({round(limit)} bytes) are free for them. Add hosts, or allow a route "
        "that shards the variable."
    )


def list_process_memory(
    layout: Layout, shares: Shares, footprints: Sequence[Footprint], model_bytes: int
) -> tuple[ProcessMemory, ...]:
    """The memory of every process, workers first."""
    copies, spread, copied, spread_buffers = (
        sum(getattr(f, field) for f in footprints) for field in ("copies", "spread", "copied_buffers", "spread_buffers")
    )
    workers_memory = [
        ProcessMemory(
            "worker", rank, host, round(copies + share * spread), round(copied + share * spread_buffers), model_bytes
        )
        for rank, (host, share) in enumerate(zip(layout.host_by_rank, shares.by_worker, strict=True))
    ]
    values, buffers = [0.0] * len(layout.servers), [0.0] * len(layout.servers)
    for one in footprints:
        for server, share in one.servers:
            values[server] += share * one.served
            buffers[server] += share * one.served_buffers
    used = any(one.servers for one in footprints)
    return tuple(workers_memory) + tuple(
        ProcessMemory("server", number, host, round(values[number]), round(buffers[number]), 0)
        for number, host in enumerate(layout.servers)
        if used
    )
