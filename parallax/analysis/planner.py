"""Chooses a route for every variable; no other module decides on a plan.

With a cluster profile the planner minimizes predicted seconds (parallax/analysis/search/route_all.py). Without one it
applies rules to bytes. Dense gradients are all-reduced. A sparse gradient takes the route with the fewest bytes and,
among equal ones, the fewest rounds. A table of which every row may be touched is all-reduced where that costs no more.
Where the number of touched rows is unknown, rows go to their owners if the table can be sharded. No time is predicted
without a profile.
"""

from __future__ import annotations

import difflib
import math
from dataclasses import replace

from parallax.analysis.routes.candidates import Candidate, list_candidates, place_on_servers, plan_of, planned_by_rule
from parallax.analysis.routes.choose_route import is_by_row
from parallax.analysis.routes.memory import Footprint, footprint, list_process_memory, make_memory_error
from parallax.analysis.routes.owners import Shares, equal_shares
from parallax.analysis.routes.placement import place
from parallax.base.errors import PlanError
from parallax.cluster.plan_inputs import PlanInputs
from parallax.graph.garbage import without_collections
from parallax.graph.ownership import Ownership
from parallax.graph.spec import GraphSpec
from parallax.plans.half_precision import WIRE_DTYPES
from parallax.plans.plan import ALLREDUCE, PS, RUN_OPTIONS, Layout, Plan, PlanConstraints
from parallax.plans.prediction import Prediction
from parallax.plans.rewrites import Placement, TrainingMode
from parallax.plans.sum_methods import rules_text

MEASURE = "measure the cluster with `parallax calibrate`"


@without_collections
def make_plan(
    spec: GraphSpec, layout: Layout, constraints: PlanConstraints | None = None, measured: PlanInputs | None = None
) -> Plan:
    """Plans a graph for the workers and servers of a job.

    Args:
        spec: the spec of the graph.
        layout: the workers, and the servers that may be started.
        constraints: the user's requirements.
        measured: the profiles of cluster and model.

    Raises:
        PlanError: when the constraints name an unknown variable, or require the impossible; when a profile belongs to
            another cluster or graph; when some host has not enough memory.
    """
    constraints, measured = constraints or PlanConstraints(), measured or PlanInputs()
    _check_wishes(spec, layout, constraints)
    measured.check_belongs_to(spec.model_key, len(layout.hosts))
    candidates = list_candidates(spec, layout, constraints, measured)
    unknown = _unknown_times(candidates, layout, constraints, measured)
    if unknown:
        plan, shares = _by_rule(spec, layout, constraints, candidates), equal_shares(layout.num_workers)
        prediction = Prediction(unknown=f"times unknown: {unknown}")
    else:
        from parallax.analysis.search.plan_by_seconds import timed_plan

        plan, shares, prediction = timed_plan(spec, layout, constraints, measured, candidates)
    for name in constraints.partitions:
        if not plan.variable(name).servers:
            raise PlanError(
                f"partitions[{name!r}] is set, but only variables on servers (route ps) have partitions and {name!r} "
                "takes another route. Remove the entry."
            )
    return replace(
        plan,
        prediction=_add_memory(prediction, plan, candidates, shares, constraints, measured),
        profiles=measured.used,
        notes=(*plan.notes, *_sum_notes(plan, measured)),
        sums=() if measured.cluster is None else tuple(one.rules for one in measured.cluster.sums),
    )


def _sum_notes(plan: Plan, measured: PlanInputs) -> tuple[str, ...]:
    """By which methods all-reduces go, where there are any and their methods were measured."""
    sums = None if measured.cluster is None else measured.cluster.sums_of(plan.hosts)
    if sums is None or not any(variable.route == ALLREDUCE for variable in plan.variables):
        return ()
    return (f"all-reduces go by the methods measured: {rules_text(sums.rules.rules)}",)


def _unknown_times(
    candidates: list[Candidate], layout: Layout, constraints: PlanConstraints, measured: PlanInputs
) -> str:
    """Why no times can be predicted; empty when they can."""
    if measured.cluster is None:
        return MEASURE
    if not constraints.synchronous:
        return "only synchronous steps are predicted"
    from parallax.analysis.search.route_all import explain_unmeasured

    return explain_unmeasured(candidates, layout, constraints, measured.cluster)


def _by_rule(spec: GraphSpec, layout: Layout, constraints: PlanConstraints, candidates: list[Candidate]) -> Plan:
    """The plan by bytes and rounds."""
    variables = [planned_by_rule(c, layout) for c in candidates]
    on_servers = [v for v, planned in zip(spec.variables, variables, strict=True) if planned.route == PS]
    loads = {p.name: float(p.cost.sent_bytes or 2 * spec.variable(p.name).value_bytes) for p in variables}
    placed = place(on_servers, loads, len(layout.servers), constraints.partitions) if on_servers else {}
    servers = len(layout.servers)
    return plan_of(
        spec,
        layout,
        constraints,
        tuple(
            place_on_servers(c.variable, p, placed.get(p.name, ()), servers)
            for c, p in zip(candidates, variables, strict=True)
        ),
    )


def _add_memory(
    prediction: Prediction,
    plan: Plan,
    candidates: list[Candidate],
    shares: Shares,
    constraints: PlanConstraints,
    measured: PlanInputs,
) -> Prediction:
    """Adds the memory of every process.

    Raises:
        PlanError: when it exceeds that of some host.
    """
    planned = {v.name: v for v in plan.variables}
    footprints = [
        footprint(
            c.variable,
            planned[c.variable.name].route,
            c.touched,
            plan.num_workers,
            planned[c.variable.name].servers,
            plan.accumulate_steps,
        )
        for c in candidates
    ]
    model_bytes = 0 if measured.model is None else measured.model.memory_bytes or 0
    memory = list_process_memory(plan.layout, shares, footprints, model_bytes)
    for host in range(len(plan.hosts)):
        limits = [limit for limit in (constraints.memory_bytes,) if limit is not None]
        if measured.cluster is not None:
            limits.append(measured.cluster.hosts[host].memory_bytes)
        here = [m for m in memory if m.host == host]
        needed = sum(m.values_bytes + m.exchange_bytes for m in here)
        free = min(limits, default=math.inf) - sum(m.model_bytes for m in here)
        if needed > free + len(here):  # bytes were rounded
            name = f"host {host}" if measured.cluster is None else measured.cluster.hosts[host].name
            largest, its_bytes = _largest(candidates, footprints)
            raise make_memory_error(largest, its_bytes, needed, free, name)
    return replace(prediction, memory=memory)


def _largest(candidates: list[Candidate], footprints: list[Footprint]) -> tuple[str, float]:
    """The variable with the most bytes in one process, and their number."""
    sizes = {
        c.variable.name: f.copies + f.copied_buffers + f.spread + f.served
        for c, f in zip(candidates, footprints, strict=True)
    }
    name = max(sorted(sizes), key=lambda n: sizes[n])
    return name, sizes[name]


def part_routes(spec: GraphSpec, plan: Plan) -> dict[str, str]:
    """The routes of a plan in the form for propagation: variable op -> route, for all parts with sparse gradients.

    `raw` is an allgather whose rows must not be coalesced first.
    """
    route_by_part = {}
    for variable in spec.variables:
        if variable.has_slices:
            route = "raw" if variable.unmerged else plan.variable(variable.name).route
            route_by_part.update({part.op: route for part in variable.parts})
    return route_by_part


def placements(spec: GraphSpec, plan: Plan) -> dict[str, Placement]:
    """The placements of rows in the form for propagation: variable op -> its servers, or the pattern of its workers."""
    placement_by_part = {}
    for variable in spec.variables:
        planned = plan.variable(variable.name)
        if planned.owner_pattern not in ((), Ownership.even(plan.num_replicas).pattern):
            placement_by_part.update({part.op: Placement(pattern=planned.owner_pattern) for part in variable.parts})
        for part, servers in zip(variable.parts, planned.servers, strict=False):
            placement_by_part[part.op] = Placement(servers, replicated=not is_by_row(variable))
    return placement_by_part


def get_training_mode(plan: Plan) -> TrainingMode:
    """The mode in which the workers of a plan train."""
    by_servers = plan.run_option == "PS" and bool(plan.servers)
    sums = "servers" if by_servers else "collectives"
    return TrainingMode(plan.synchronous, plan.average_sparse, sums, plan.wire_dtype, plan.accumulate_steps)


def _check_wishes(spec: GraphSpec, layout: Layout, constraints: PlanConstraints) -> None:
    for name in (*constraints.routes, *constraints.touched_rows, *constraints.partitions):
        _check_known(spec, name)
    for name, rows in constraints.touched_rows.items():
        most = spec.variable(name).rows
        if not 0 < rows <= most:
            raise PlanError(
                f"touched_rows[{name!r}] must be between 1 and {most}, the rows of the variable, got {rows}."
            )
    if constraints.run_option not in RUN_OPTIONS:
        raise PlanError(f"run_option must be one of {', '.join(RUN_OPTIONS)}, got {constraints.run_option!r}.")
    if constraints.wire_dtype not in (None, *WIRE_DTYPES):
        raise PlanError(f"wire_dtype must be one of {', '.join(WIRE_DTYPES)}, or None, got {constraints.wire_dtype!r}.")
    if constraints.accumulate_steps < 1:
        raise PlanError(f"accumulate_steps must be at least 1, got {constraints.accumulate_steps!r}.")
    if not constraints.synchronous and constraints.run_option == "MPI":
        sync = False if constraints.staleness is None else "bounded"
        raise PlanError(
            f"Asynchronous training (sync={sync!r}) keeps all trained variables on servers, but run option MPI "
            "starts no servers. Use run_option='PS' or sync=True."
        )
    if not layout.servers and (constraints.run_option == "PS" or not constraints.synchronous):
        raise PlanError(
            "Run option PS and asynchronous training need a server, but the resource file gives every host `servers: "
            "0`. Allow servers on at least one host."
        )


def _check_known(spec: GraphSpec, name: str) -> None:
    names = [v.name for v in spec.variables]
    if name not in names:
        near = difflib.get_close_matches(name, names, n=3) or names[:10]
        raise PlanError(f"The graph has no variable {name!r}. Did you mean: {', '.join(near)}?")
