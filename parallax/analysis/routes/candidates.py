"""A variable with its candidate routes, and its entry in a plan once one of them is chosen."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from parallax.analysis.routes.choose_route import (
    choose_cheapest,
    explain_servers,
    find_requested_option,
    is_by_row,
    options_of,
)
from parallax.analysis.routes.cost import count_step_rows
from parallax.analysis.routes.count_touched import TouchedRowCount, touched_of
from parallax.analysis.routes.owners import Shares, equal_shares
from parallax.base.errors import PlanError
from parallax.cluster.plan_inputs import PlanInputs
from parallax.graph.ownership import Ownership
from parallax.graph.spec import GraphSpec, VariableClass, VariableSpec
from parallax.plans.half_precision import FLOAT32, sums_travel_as
from parallax.plans.plan import (
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    NO_ROUTE,
    PLAN_VERSION,
    PS,
    Layout,
    Plan,
    PlanConstraints,
    RouteCost,
    VariablePlan,
)
from parallax.report.text import pluralize


@dataclass(frozen=True, slots=True)
class Candidate:
    """A variable and its routes.

    Attributes:
        variable: the variable.
        costs: all routes, possible or not, in bytes and rounds.
        touched: its rows; None when unknown, or when its gradient is dense.
        allowed: the routes to choose from; only one where the user or a rule has chosen.
        reason: why there is only one; empty where cost decides.
        is_priced: whether its seconds can be predicted: it has a gradient, and its rows are known if they matter.
    """

    variable: VariableSpec
    costs: tuple[RouteCost, ...]
    touched: TouchedRowCount | None
    allowed: tuple[str, ...]
    reason: str
    is_priced: bool


def list_candidates(
    spec: GraphSpec, layout: Layout, constraints: PlanConstraints, measured: PlanInputs
) -> list[Candidate]:
    """Every variable with its routes.

    Raises:
        PlanError: when the constraints require the impossible.
    """
    return [make_candidate(variable, layout, constraints, measured) for variable in spec.variables]


def make_candidate(
    variable: VariableSpec, layout: Layout, constraints: PlanConstraints, measured: PlanInputs
) -> Candidate:
    """A variable with its routes, and the routes among which cost decides."""
    requested = constraints.routes.get(variable.name)
    touched = touched_of(variable, constraints, measured)
    batches, rows = constraints.accumulate_steps, None
    if touched is not None:
        rows = count_step_rows(math.ceil(touched.one), batches, touched.of(batches))
    options = options_of(variable, layout, constraints, rows)
    servers = next((o for o in options if o.route == PS and o.is_possible), None)
    has_route = options[0].route != NO_ROUTE
    allowed, reason = tuple(o.route for o in options if o.is_possible) if has_route else (), ""
    if requested is not None:
        allowed, reason = (find_requested_option(variable, options, requested).route,), "asked for in the configuration"
    elif servers is not None and (by_rule := explain_servers(variable, layout, constraints)):
        allowed, reason = (PS,), by_rule
    elif not has_route and not constraints.synchronous and variable.cls == VariableClass.UNTRAINED:
        allowed, reason = (NO_ROUTE,), "no gradient: each worker's own, as none waits for the others"
    if allowed != (PS,) and not constraints.synchronous and has_route:
        why_not = next(o.why_not for o in options if o.route == PS)
        why = f"{variable.name!r} was given {allowed[0]!r}"
        if why_not is not None:
            why = f"ps is impossible: {why_not} ({variable.name})"
        raise PlanError(f"Asynchronous training keeps all trained variables on servers: {why}.")
    by_rows = any(route in (ALLGATHER, ALLTOALL) or (route == PS and is_by_row(variable)) for route in allowed)
    is_priced = bool(allowed and variable.gradients) and (touched is not None or not by_rows)
    return Candidate(variable, tuple(o.describe_cost() for o in options), touched, allowed, reason, is_priced)


def planned_by_rule(candidate: Candidate, layout: Layout) -> VariablePlan:
    """One variable's plan by bytes and rounds; partitions on servers are not yet placed."""
    variable, costs = candidate.variable, list(candidate.costs)
    if candidate.reason:
        chosen = next(o for o in costs if o.route == candidate.allowed[0])
        reason = candidate.reason
    else:
        touched = None if candidate.touched is None else math.ceil(candidate.touched.one)
        chosen, reason = choose_cheapest(variable, costs, candidate.allowed, touched)
    rejected = tuple(rejected_by_bytes(option, chosen) for option in costs if option.route != chosen.route)
    return variable_plan(candidate, chosen, reason, rejected, equal_shares(layout.num_workers))


def variable_plan(
    candidate: Candidate, chosen: RouteCost, reason: str, rejected: tuple[RouteCost, ...], shares: Shares
) -> VariablePlan:
    """A variable's plan without its servers."""
    variable, spread = candidate.variable, chosen.route == ALLTOALL
    return VariablePlan(
        name=variable.name,
        cls=variable.cls,
        shape=variable.shape,
        dtype=variable.dtype,
        route=chosen.route,
        owner_rows=rows_by_owner(variable, shares.ownership) if spread else (),
        owner_pattern=shares.pattern if spread else (),
        touched_rows=None if candidate.touched is None else math.ceil(candidate.touched.one),
        touched_is_measured=candidate.touched is not None and candidate.touched.is_measured,
        cost=replace(chosen, note=""),
        reason=reason,
        rejected=rejected,
        slots=tuple(slot.name for slot in variable.slots),
        evidence=variable.evidence,
    )


def rows_by_owner(variable: VariableSpec, ownership: Ownership) -> tuple[int, ...]:
    """The number of a variable's rows, over all its parts, that each worker owns."""
    return tuple(map(sum, zip(*(ownership.counts(part.rows) for part in variable.parts), strict=True)))


def rejected_by_bytes(option: RouteCost, chosen: RouteCost) -> RouteCost:
    """A rejected route, with its bytes compared with those of the chosen one."""
    if option.note or option.sent_bytes is None or chosen.sent_bytes is None:
        return option
    if option.sent_bytes == chosen.sent_bytes:
        note = "equal bytes, no fewer rounds"
    elif chosen.sent_bytes == 0:
        note = "more bytes"
    else:
        note = f"{option.sent_bytes / chosen.sent_bytes:.2f} times the bytes"
    return RouteCost(option.route, option.sent_bytes, option.rounds, note)


def place_on_servers(
    variable: VariableSpec, planned: VariablePlan, placed: tuple[tuple[int, ...], ...], servers: int
) -> VariablePlan:
    """The plan of a variable with its placement on servers, if it has one."""
    if not placed:
        return planned
    rows = [0] * servers
    for part, of_part in zip(variable.parts, placed, strict=True):
        for server, count in zip(of_part, Ownership.even(len(of_part)).counts(part.rows), strict=True):
            rows[server] += count
    return replace(planned, owner_rows=tuple(rows), servers=placed)


def plan_of(
    spec: GraphSpec,
    layout: Layout,
    constraints: PlanConstraints,
    variables: tuple[VariablePlan, ...],
    notes: tuple[str, ...] = (),
) -> Plan:
    """A plan of variables, without prediction."""
    return Plan(
        version=PLAN_VERSION,
        fingerprint=spec.fingerprint,
        hosts=layout.hosts,
        servers=layout.servers if any(v.servers for v in variables) else (),
        run_option=constraints.run_option,
        synchronous=constraints.synchronous,
        average_sparse=constraints.average_sparse,
        variables=variables,
        notes=(
            *spec.notes,
            *_notes(constraints),
            *_wire_notes(constraints.wire_dtype, variables),
            *_note_unmerged_rows(spec, layout, constraints, variables),
            *notes,
        ),
        wire_dtype=constraints.wire_dtype,
        accumulate_steps=constraints.accumulate_steps,
        staleness=constraints.staleness,
    )


def _notes(constraints: PlanConstraints) -> tuple[str, ...]:
    notes = []
    if not constraints.synchronous:
        bound = "" if constraints.staleness is None else f", at most {pluralize(constraints.staleness, 'run')} ahead"
        notes.append(f"asynchronous: each worker updates the variables on the servers on its own{bound}")
    if constraints.accumulate_steps > 1:
        notes.append(note_of_batches(constraints.accumulate_steps))
    if not constraints.average_sparse:
        notes.append("sparse gradients are summed over the workers, not averaged")
    return tuple(notes)


def _note_unmerged_rows(
    spec: GraphSpec, layout: Layout, constraints: PlanConstraints, variables: tuple[VariablePlan, ...]
) -> tuple[str, ...]:
    """The cost of leaving equal gradient rows uncoalesced: several sums of them travel."""
    unmerged = {variable.name: variable for variable in spec.variables if variable.sums > 1}
    planned = [plan for plan in variables if plan.name in unmerged and plan.route != NO_ROUTE]
    if not planned:
        return ()
    more = 0
    for plan in planned:
        rows = None if plan.touched_rows is None else count_step_rows(plan.touched_rows, constraints.accumulate_steps)
        costs = options_of(replace(unmerged[plan.name], sums=1), layout, constraints, rows)
        merged = next(option.cost.sent_bytes for option in costs if option.route == plan.route)
        more += (plan.cost.sent_bytes or 0) - (merged or 0)
    saved = f"a worker sends {more:,} B less per step" if more else "gradient rows are then as wide as the table's"
    return (
        f"duplicate gradient rows are applied one by one, as in Keras: {', '.join(plan.name for plan in planned)}. "
        f"With merge_rows=True they are summed first, which gives the dense gradient's result; {saved}",
    )


def _wire_notes(wire: str | None, variables: tuple[VariablePlan, ...]) -> tuple[str, ...]:
    """The routes that travel in half precision, and those that do not although it was requested."""
    if wire is None:
        return ()
    by_rows = (ALLTOALL, ALLGATHER)
    halved = [v.name for v in variables if v.route in by_rows or (v.route == PS and v.cls == VariableClass.SPARSE)]
    notes = [f"rows and their gradients are sent as {wire} and summed as float32"] if halved else []
    reduced = any(v.route == ALLREDUCE and v.dtype == FLOAT32 for v in variables)
    if reduced and sums_travel_as(FLOAT32, wire) == FLOAT32:
        notes.append(f"all-reduced gradients are sent as float32: Horovod cannot sum {wire}")
    elif reduced:
        notes.append(f"all-reduced gradients are sent and summed as {wire}")
    if any(v.route == PS and v.cls != VariableClass.SPARSE for v in variables):
        notes.append("variables on servers of which every worker has a copy are sent unchanged")
    return tuple(notes)


def note_of_batches(count: int) -> str:
    """The plan's note on updates over several batches."""
    return f"each update takes the gradients of {count} batches of every worker"
