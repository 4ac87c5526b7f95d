"""Predicts a meeting of islands: the bytes that an island sends to others, and the seconds of all that a meeting sends.

Leaders all-reduce n bytes of dense variables and state, so each of p islands sends 2 (p - 1) / p n over the links
between them, and its leader then broadcasts n bytes within. Of a table whose rows have owners, the hosts of an island
send at once 2 (p - 1) / p of a bit for each row, and of the rows that any island has touched since the last meeting;
they share the link to other islands if its rate was measured, and else each has its own. Each exchange follows the
other, and takes what the profile's line of all-reduces says.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from parallax.analysis.routes.count_touched import touched_of
from parallax.base.errors import PlanError
from parallax.cluster.plan_inputs import PlanInputs
from parallax.cluster.profiles import AlphaBeta, ClusterProfile
from parallax.graph.spec import GraphSpec, VariableClass, VariableSpec
from parallax.plans.half_precision import FLOAT32, WIRE_DTYPES, element_bytes
from parallax.plans.island_plan import IslandPlan
from parallax.plans.plan import ALLTOALL, NO_ROUTE, Layout, Plan, PlanConstraints

_BITS = 8


def profile_of_island(measured: PlanInputs, layout: Layout, islands: int) -> PlanInputs:
    """The profiles of an island's job: at each place the slowest host that an island has there, and its part of cores.

    Args:
        measured: profiles of all hosts.
        layout: of all workers.
        islands: how many.

    Raises:
        PlanError: islands have different numbers of workers on their hosts, or the profile is of other hosts.
    """
    cluster = measured.cluster
    if cluster is None:
        return measured
    replace(measured, model=None).check_belongs_to("", len(layout.hosts))
    shared = None if cluster.shared_cores is None else cluster.shared_cores / islands
    if len(layout.hosts) == 1:
        return replace(measured, cluster=replace(cluster, shared_cores=shared))
    size = len(layout.hosts) // islands
    parts = [layout.hosts[first : first + size] for first in range(0, len(layout.hosts), max(size, 1))]
    if len(parts) != islands or len(set(parts)) > 1:
        raise PlanError(
            "Step times are predicted only for islands of equal hosts, and hosts with "
            f"{list(layout.hosts)} workers were given for {islands} islands. Leave the cluster profile out."
        )
    hosts = [
        replace(
            cluster.hosts[place],
            memory_bytes=min(host.memory_bytes for host in cluster.hosts[place::size]),
            out_bytes_per_s=min(host.out_bytes_per_s for host in cluster.hosts[place::size]),
            in_bytes_per_s=min(host.in_bytes_per_s for host in cluster.hosts[place::size]),
        )
        for place in range(size)
    ]
    return replace(measured, cluster=replace(cluster, hosts=tuple(hosts), shared_cores=shared))


def predict_meeting(
    islands: IslandPlan,
    plan: Plan,
    spec: GraphSpec,
    hosts: Sequence[int],
    constraints: PlanConstraints,
    measured: PlanInputs,
) -> IslandPlan:
    """The terms of islands with the bytes and seconds of a meeting; None for unknown ones.

    Args:
        islands: how they meet.
        plan: of one island.
        spec: the variables.
        hosts: of the job, with their workers.
        constraints: the user's requirements.
        measured: profiles of all hosts.
    """
    dense_bytes, sent_dense, tables = 0, 0, list[float]()
    for variable in spec.variables:
        if plan.variable(variable.name).route == ALLTOALL:
            touched = touched_of(variable, constraints, measured)
            if touched is None:
                return islands
            rows = touched.of(plan.num_workers * islands.count * islands.every * plan.accumulate_steps)
            tables.append(rows * variable.width * _element_bytes(variable) + variable.rows / _BITS)
        elif plan.variable(variable.name).route != NO_ROUTE or _is_state(variable):
            own_bytes, elements = _element_bytes(variable), math.prod(variable.shape)
            dense_bytes += elements * own_bytes
            averaged_as = FLOAT32 if variable.dtype in WIRE_DTYPES else variable.dtype
            sent_dense += elements * element_bytes(averaged_as, own_bytes, islands.travels_as(averaged_as))
    part, island_hosts = 2 * (islands.count - 1) / islands.count, plan.hosts
    sent_bytes = part * (sent_dense + sum(tables))
    known = replace(islands, meeting_bytes=round(sent_bytes))
    if measured.cluster is None:
        return known
    between = _line(measured.cluster, len(hosts) > 1)
    within = _line(measured.cluster, len(island_hosts) > 1) if plan.num_workers > 1 else None
    if between is None or (plan.num_workers > 1 and within is None):
        return known
    rate = _slowest(measured.cluster, len(hosts))
    cable = measured.cluster.between_bytes_per_s  # of all hosts of an island
    senders = 1 if cable else len(island_hosts)
    link_bytes = [part * sent_dense, *(part * one / senders for one in tables)]
    seconds = sum(between.seconds(islands.count, one, cable or rate) for one in link_bytes)
    if within is not None:
        hops = math.ceil(math.log2(len(island_hosts))) or 1
        seconds += within.seconds(plan.num_workers, hops * dense_bytes, rate if len(island_hosts) > 1 else None)
    return replace(known, meeting_s=seconds)


def _is_state(variable: VariableSpec) -> bool:
    """Whether islands average a variable without a gradient."""
    return variable.cls is VariableClass.UNTRAINED and "float" in variable.dtype


def _element_bytes(variable: VariableSpec) -> int:
    """Bytes of an element at a meeting: half precision is averaged in float32."""
    return max(variable.dtype_bytes, 4)


def _line(cluster: ClusterProfile, is_across: bool) -> AlphaBeta | None:
    return (cluster.across if is_across else cluster.within).get("allreduce")


def _slowest(cluster: ClusterProfile, hosts: int) -> float | None:
    """Bytes per second of the slowest link; None on one host."""
    return min(min(host.out_bytes_per_s, host.in_bytes_per_s) for host in cluster.hosts) if hosts > 1 else None
