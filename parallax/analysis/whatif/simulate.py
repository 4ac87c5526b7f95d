"""Predicts a job on hypothetical clusters: more hosts, other links, another batch, vocabulary or width.

Every size is planned again, so its figures are those of the best plan there. Hosts are copies of the measured ones. All
factors scale the measurements, by the formulas of `changed_spec`, `changed_table` and `changed_model`; the rest is as
for any plan (parallax/analysis/timing/route_seconds.py, step_time.py).
"""

from __future__ import annotations

import itertools
import math
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from parallax.analysis.cut.op_costs import OPS_PER_S
from parallax.analysis.whatif.balance import balances_of
from parallax.base.errors import PlanError
from parallax.cluster.plan_inputs import PlanInputs
from parallax.cluster.profiles import (
    CLUSTER_PROFILE_VERSION,
    OPERATIONS,
    AlphaBeta,
    ClusterProfile,
    HostProfile,
    ModelProfile,
    TableProfile,
)
from parallax.graph.spec import GraphSpec, Part, VariableSpec
from parallax.plans.plan import NO_ROUTE, Layout, Plan, PlanConstraints
from parallax.plans.what_if import Simulation, Size, WhatIf
from parallax.report.plan_table import describe_holders
from parallax.report.text import pluralize

SHOWN_CHANGES = 20
"""The number of changes from the preceding size that are named; if there are more, the rest is counted."""

Planner = Callable[[GraphSpec, Layout, PlanConstraints, PlanInputs], Plan]


@dataclass(frozen=True, slots=True)
class HostKind:
    """A host that simulated hosts copy.

    Attributes:
        workers: the number of workers on it.
        servers: the number of servers that may be started on it.
        link_bytes_per_s: rate of its link, as set by the user; None when the cluster profile has it.
    """

    workers: int = 1
    servers: int = 1
    link_bytes_per_s: float | None = None


def simulate(
    spec: GraphSpec,
    kinds: Sequence[HostKind],
    constraints: PlanConstraints,
    measured: PlanInputs,
    what_if: WhatIf,
    plan: Planner,
) -> Simulation:
    """Plans a graph for each size.

    Args:
        spec: the spec of the graph.
        kinds: the hosts to copy, in turn; as many as the cluster profile's hosts, or any number without one.
        constraints: the user's requirements of every plan.
        measured: the profiles of cluster and model.
        what_if: sizes, and differences from the measured job.
        plan: makes a plan for a layout.

    Raises:
        PlanError: when nothing is known of the links, when no step can be predicted, when one host was measured and
            several are requested, or when no plan fits.
    """
    of_cluster = _cluster(kinds, measured, what_if)
    changed = changed_spec(spec, what_if)
    model = None if measured.model is None else changed_model(measured.model, changed, what_if)
    new_constraints = changed_constraints(constraints, changed, what_if)
    sizes: list[Size] = []
    before: Plan | None = None
    for hosts in what_if.hosts:
        of_hosts = [kinds[n % len(kinds)] for n in range(hosts)]
        layout = Layout(
            tuple(what_if.workers_per_host or kind.workers for kind in of_hosts),
            tuple(n for n, kind in enumerate(of_hosts) for _ in range(kind.servers)),
        )
        there = replace(measured, cluster=copy_cluster(of_cluster, hosts), model=model)
        planned = plan(changed, layout, new_constraints, there)
        sizes.append(_size(planned, before, sizes, what_if, rounds_take_time=measured.cluster is not None))
        before = planned
    if all(size.step_s is None for size in sizes):
        raise PlanError(f"A simulation needs times; {sizes[0].unknown}.")
    return Simulation(
        graph=spec.fingerprint,
        what_if=what_if,
        sizes=tuple(sizes),
        balances=balances_of(changed, of_cluster, model, sizes[-1].workers),
        assumptions=_assumptions(measured, what_if, kinds, sizes),
        profiles=measured.used,
    )


def copy_cluster(cluster: ClusterProfile, hosts: int) -> ClusterProfile:
    """A cluster of `hosts` hosts, copies of those of a profile in turn, each with its own cores."""
    copies = (
        replace(host, name=f"{host.name} ({number})")
        for number, host in zip(range(hosts), itertools.cycle(cluster.hosts), strict=False)
    )
    return replace(cluster, hosts=tuple(copies), shared_cores=None)


def changed_spec(spec: GraphSpec, what_if: WhatIf) -> GraphSpec:
    """The spec with other rows and widths of the variables looked up by row, and other numbers of ids per step.

    Rows of each part times `vocabulary`, the last dimension times `width`, both rounded; ids times `batch`. Dense
    variables are unchanged, including those with a row for each word.
    """
    return replace(spec, variables=tuple(_changed_variable(v, what_if) for v in spec.variables))


def _changed_variable(variable: VariableSpec, what_if: WhatIf) -> VariableSpec:
    if not (variable.has_slices or variable.lookups) or not variable.shape:
        return variable
    width = variable.shape[1:]
    if width:
        width = (*width[:-1], max(1, round(width[-1] * what_if.width)))
    parts, offset = [], 0
    for part in variable.parts:
        rows = max(1, round(part.rows * what_if.vocabulary))
        parts.append(Part(part.op, (rows, *width), offset))
        offset += rows
    ids = None if variable.ids_per_step is None else max(1, round(variable.ids_per_step * what_if.batch))
    elements = math.prod(width)
    slots = tuple(replace(s, width=elements) if s.width == variable.width else s for s in variable.slots)
    return replace(variable, shape=(offset, *width), parts=tuple(parts), slots=slots, ids_per_step=ids)


def changed_model(model: ModelProfile, spec: GraphSpec, what_if: WhatIf) -> ModelProfile:
    """Compute and the part of it that hides exchanges, times `batch`; memory too, but no less; see `changed_table`.

    Args:
        model: as measured.
        spec: the changed one.
        what_if: the differences from the measured job.
    """
    rows = {v.name: v.rows for v in spec.variables}
    tables = tuple(changed_table(t, rows.get(t.name, sys.maxsize), what_if.batch) for t in model.tables)
    memory = None if model.memory_bytes is None else round(model.memory_bytes * max(1.0, what_if.batch))
    return replace(
        model,
        tables=tables,
        memory_bytes=memory,
        compute_s=None if model.compute_s is None else model.compute_s * what_if.batch,
        overlap_s=None if model.overlap_s is None else model.overlap_s * what_if.batch,
    )


def changed_table(table: TableProfile, rows: int, batch: float) -> TableProfile:
    """The touched rows of steps whose batch is b times as large: those that b workers touch together.

    A worker with b times the examples looks up the ids of b workers, so with J(k) the rows that k workers touch
    together,

        u' = J(b),    J'(k) = J(k b),    ids' = b ids

    J is the measured curve: straight lines through (0, 0), (1, u) and the further points, the last one extended, and at
    most all rows. It is concave, so the true number of rows is a little larger between points, and smaller beyond the
    last.

    Args:
        table: as measured.
        rows: the number of rows of the variable.
        batch: b.
    """
    points = ((0, 0.0), *table.joined_rows) if table.joined_rows else ((0, 0.0), (1, table.touched_rows))

    def count_joint_rows(k: float) -> float:
        pairs = itertools.pairwise(points)
        (k0, r0), (k1, r1) = next((pair for pair in pairs if k <= pair[1][0]), points[-2:])
        return min(float(rows), r0 + (r1 - r0) * (k - k0) / (k1 - k0))

    return replace(
        table,
        ids=table.ids * batch,
        touched_rows=count_joint_rows(batch),
        joined_rows=tuple((k, count_joint_rows(k * batch)) for k, _ in table.joined_rows),
    )


def changed_constraints(constraints: PlanConstraints, spec: GraphSpec, what_if: WhatIf) -> PlanConstraints:
    """Touched rows set by the user, times `batch`, at most all rows: no curve is known for them."""
    rows = {v.name: v.rows for v in spec.variables}
    touched = {
        name: max(1, min(rows[name], round(count * what_if.batch))) if name in rows else count
        for name, count in constraints.touched_rows.items()
    }
    return replace(constraints, touched_rows=touched)


def _cluster(kinds: Sequence[HostKind], measured: PlanInputs, what_if: WhatIf) -> ClusterProfile:
    """The hosts to copy, with the requested link rates."""
    if measured.cluster is not None:
        hosts, lines = measured.cluster.hosts, measured.cluster
        if not lines.across and max(what_if.hosts) > 1:
            raise PlanError(
                f"The links between hosts are unknown, since {measured.cluster_name or 'the cluster profile'} was "
                "measured within one host. Measure several hosts with `parallax calibrate -r FILE`; or derive their "
                "profile from that of other hosts with --from; or remove --cluster and give --link-rate 10gbit, for a "
                "lower bound on step time."
            )
        if len(kinds) not in (1, len(hosts)):
            raise PlanError(
                f"The cluster profile must be of the hosts to copy: {measured.cluster_name or 'this one'} has "
                f"{len(hosts)}, the resource file {len(kinds)}. Measure these hosts with `parallax calibrate`."
            )
    else:
        rates = [what_if.link_bytes_per_s or kind.link_bytes_per_s for kind in kinds]
        if None in rates:
            raise PlanError(
                "A simulation needs the rate of the links, which is unknown. Measure a cluster with "
                "`parallax calibrate` and pass its profile with --cluster, or pass a rate with --link-rate 10gbit."
            )
        hosts = tuple(HostProfile("given", 0, sys.maxsize, rate or 0.0, rate or 0.0) for rate in rates)
        free = dict.fromkeys(OPERATIONS, AlphaBeta(0.0, 0.0, 0.0, 0.0, 0))
        lines = ClusterProfile(CLUSTER_PROFILE_VERSION, hosts, free, free)
    rate = what_if.link_bytes_per_s
    changed = (
        replace(
            host,
            out_bytes_per_s=rate or host.out_bytes_per_s * what_if.links,
            in_bytes_per_s=rate or host.in_bytes_per_s * what_if.links,
        )
        for host in hosts
    )
    return replace(lines, hosts=tuple(changed))


def _size(plan: Plan, before: Plan | None, sizes: Sequence[Size], what_if: WhatIf, rounds_take_time: bool) -> Size:
    known = plan.prediction
    memory = [0] * len(plan.hosts)
    for process in known.memory:
        memory[process.host] += process.values_bytes + process.exchange_bytes + process.model_bytes
    throughput = efficiency = None
    if known.step_s and known.has_compute:
        batches = plan.num_replicas * plan.accumulate_steps if plan.stages else plan.num_workers
        throughput = batches * what_if.batch / known.step_s
        first = next((size for size in sizes if size.throughput is not None), None)
        if first is None or first.throughput is None:
            efficiency = 1.0
        elif rounds_take_time:  # the time of rounds is what makes large sizes inefficient
            efficiency = throughput / plan.num_workers / (first.throughput / first.workers)
    sent_bytes: float = sum(v.cost.sent_bytes or 0 for v in plan.variables)
    if plan.stages:
        sent_bytes = max((load.out_bytes / plan.hosts[load.host] for load in known.loads), default=0)
    counts = Counter(v.route for v in plan.variables if v.route != NO_ROUTE)
    return Size(
        hosts=len(plan.hosts),
        workers=plan.num_workers,
        step_s=known.step_s,
        throughput=throughput,
        efficiency=efficiency,
        memory_bytes=max(memory),
        sent_bytes=round(sent_bytes),
        routes=tuple(sorted(counts.items())),
        changes=() if before is None else _changes(before, plan),
        phases=known.phases,
        gap=known.gap,
        unknown=known.unknown,
    )


def _changes(before: Plan, after: Plan) -> tuple[str, ...]:
    """The variables with another route, and the cost of the old one now; on servers, other numbers of partitions."""
    lines = []
    for a, b in zip(before.variables, after.variables, strict=True):
        if a.route != b.route:
            why = next((cost.note for cost in b.rejected if cost.route == a.route), "")
            lines.append(f"{a.name}: {a.route} -> {b.route}" + (f" ({a.route}: {why})" if why else ""))
        elif b.servers:
            holders = describe_holders(a), describe_holders(b)
            if holders[0] != holders[1]:
                lines.append(f"{a.name}: {holders[0]} -> {holders[1]}")
    more = len(lines) - SHOWN_CHANGES
    return tuple(lines[:SHOWN_CHANGES] + ([f"and {more} more"] if more > 0 else []))


def _assumptions(
    measured: PlanInputs, what_if: WhatIf, kinds: Sequence[HostKind], sizes: Sequence[Size]
) -> tuple[str, ...]:
    lines = []
    if measured.cluster is None:
        lines.append(
            "Only the links' rate is known: rounds and copies are taken as free, and memory as unlimited. Steps take "
            "at least the stated time, and efficiency is unknown. To know it, measure some hosts with "
            "`parallax calibrate -r FILE -o cluster.json` and give --cluster cluster.json."
        )
    else:
        number = len(measured.cluster.hosts)
        what = "the measured host" if number == 1 else f"the {number} measured hosts, in turn"
        lines.append(
            f"Hosts are copies of {what}, each with cores of its own. What a round takes was fitted to at most "
            f"{pluralize(number, 'host')}, and follows that line (per_peer_s for each further member) as far as the "
            "largest size."
        )
        if number == 2:
            lines.append(
                "With two measured hosts a round takes as long with any number of them, as what a further one adds is "
                "not known: efficiency is too high. Measure three or more with `parallax calibrate`."
            )
    if what_if.link_bytes_per_s is not None and measured.cluster is not None:
        lines.append("Links have the given rate; copies and checks take what was measured.")
    if what_if.links != 1:
        lines.append(f"Links are {what_if.links:g} times as fast as measured; rounds, copies and checks as measured.")
    if what_if.batch != 1:
        lines.append(
            f"A worker's batch is {what_if.batch:g} times as large: so is its compute, and it touches the rows that "
            f"{what_if.batch:g} workers touch together, by the measured curve where there is one."
        )
    if what_if.vocabulary != 1:
        lines.append(
            f"Variables looked up by row have {what_if.vocabulary:g} times the rows; touched rows stay, up to all rows."
        )
    if what_if.width != 1:
        lines.append(f"Rows looked up are {what_if.width:g} times as wide; compute and dense variables stay.")
    if measured.model is None or measured.model.compute_s is None:
        is_assumed = any(size.throughput is not None for size in sizes)
        found = (
            f"seconds of ops are assumed, by {OPS_PER_S / 1e9:g} Gflop/s a worker"
            if is_assumed
            else ("steps are those of the exchanges alone, and throughput is unknown")
        )
        lines.append(f"Compute was not measured: {found}. Give a model profile by --profile.")
    if len(kinds) == 1 and what_if.workers_per_host is None and kinds[0].workers == 1:
        lines.append("Each host has one worker.")
    lines += [f"With {size.hosts} hosts {size.unknown}." for size in sizes if size.unknown]
    return tuple(lines)
