"""Chooses a route for every variable: the one place that answers "which plan".

By rule, from bytes: dense gradients are all-reduced; sparse ones take the route with the fewest bytes, and of equal
ones that with the fewest rounds; a table of which every row may be touched is all-reduced where that costs no more.
Latency and link rates are not known here, so no time is predicted.
"""

from __future__ import annotations

import difflib
from dataclasses import replace

from parallax.analysis.cost import allgather_cost, allreduce_cost, alltoall_cost, ps_cost
from parallax.analysis.placement import place
from parallax.decisions import Placement, Terms
from parallax.errors import PlanError
from parallax.ownership import Ownership
from parallax.plan import (
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    NO_ROUTE,
    PLAN_VERSION,
    PS,
    ROUTES,
    RUN_OPTIONS,
    Layout,
    Plan,
    RouteCost,
    VariablePlan,
    Wishes,
)
from parallax.spec import GraphSpec, VariableClass, VariableSpec

_ROW_TYPES = ("float16", "float32", "float64")
"""What Horovod's all-to-all and allgather and TensorFlow's accumulators take; an all-reduce of bfloat16 travels as
float32."""


def make_plan(spec: GraphSpec, layout: Layout, wishes: Wishes | None = None) -> Plan:
    """Plans a graph for the workers and servers of a job.

    Args:
        spec: what the graph is.
        layout: the workers, and the servers that may be started.
        wishes: what the user wants.

    Raises:
        PlanError: when the wishes name an unknown variable, or ask for what is impossible.
    """
    wishes = wishes or Wishes()
    _check_wishes(spec, layout, wishes)
    variables = [_plan_variable(v, layout, wishes) for v in spec.variables]
    on_servers = [v for v, planned in zip(spec.variables, variables, strict=True) if planned.route == PS]
    loads = {p.name: float(p.cost.sent_bytes or 2 * spec.variable(p.name).value_bytes) for p in variables}
    placed = place(on_servers, loads, len(layout.servers), wishes.partitions) if on_servers else {}
    for name in wishes.partitions:
        if name not in placed:
            raise PlanError(f"Only a variable on servers has partitions, and {name} has another route. Leave it out.")
    return Plan(
        version=PLAN_VERSION,
        fingerprint=spec.fingerprint,
        hosts=layout.hosts,
        servers=layout.servers if placed else (),
        run_option=wishes.run_option,
        synchronous=wishes.synchronous,
        average_sparse=wishes.average_sparse,
        variables=tuple(_placed(spec.variable(p.name), p, placed, len(layout.servers)) for p in variables),
        notes=(*spec.notes, *_notes(wishes)),
    )


def part_routes(spec: GraphSpec, plan: Plan) -> dict[str, str]:
    """What propagation needs to know of a plan: variable op -> route, for all parts with sparse gradients.

    `raw` stands for an allgather whose rows must not be merged first.
    """
    found = {}
    for variable in spec.variables:
        if variable.has_slices:
            route = "raw" if variable.unmerged else plan.variable(variable.name).route
            found.update({part.op: route for part in variable.parts})
    return found


def placements(spec: GraphSpec, plan: Plan) -> dict[str, Placement]:
    """What propagation needs to know of rows: variable op -> which servers hold them, or workers by which pattern."""
    found = {}
    for variable in spec.variables:
        planned = plan.variable(variable.name)
        if planned.owner_pattern not in ((), Ownership.even(plan.num_workers).pattern):
            found.update({part.op: Placement(pattern=planned.owner_pattern) for part in variable.parts})
        for part, servers in zip(variable.parts, planned.servers, strict=False):
            found[part.op] = Placement(servers, mirrored=not _by_row(variable))
    return found


def rows_by_owner(variable: VariableSpec, ownership: Ownership) -> tuple[int, ...]:
    """How many rows of a variable, all its parts together, each worker owns."""
    return tuple(map(sum, zip(*(ownership.counts(part.rows) for part in variable.parts), strict=True)))


def terms_of(plan: Plan) -> Terms:
    """On what terms the workers of a plan train together."""
    by_servers = plan.run_option == "PS" and bool(plan.servers)
    return Terms(plan.synchronous, plan.average_sparse, "servers" if by_servers else "collectives")


def _check_wishes(spec: GraphSpec, layout: Layout, wishes: Wishes) -> None:
    for name in (*wishes.routes, *wishes.touched_rows, *wishes.partitions):
        _check_known(spec, name)
    for name, rows in wishes.touched_rows.items():
        most = spec.variable(name).rows
        if not 0 < rows <= most:
            raise PlanError(
                f"touched_rows must be between 1 and the variable's rows: {name} has {most}, and {rows} was given."
            )
    if wishes.run_option not in RUN_OPTIONS:
        raise PlanError(f"A run option must be one of {', '.join(RUN_OPTIONS)}, and {wishes.run_option!r} was given.")
    if not wishes.synchronous and wishes.run_option == "MPI":
        raise PlanError(
            "Asynchronous training (sync=False) keeps all trained variables on servers, and run option MPI starts "
            "none. Take run_option='PS', or sync=True."
        )
    if not layout.servers and (wishes.run_option == "PS" or not wishes.synchronous):
        raise PlanError(
            "Run option PS and asynchronous training need a server, and the resource file gives every host "
            "`servers: 0`."
        )


def _notes(wishes: Wishes) -> tuple[str, ...]:
    notes = []
    if not wishes.synchronous:
        notes.append("asynchronous: every worker updates what the servers hold by itself")
    if not wishes.average_sparse:
        notes.append("sparse gradients are summed over the workers, not averaged")
    return tuple(notes)


def _placed(
    variable: VariableSpec, planned: VariablePlan, placed: dict[str, tuple[tuple[int, ...], ...]], servers: int
) -> VariablePlan:
    """The plan of a variable with its place on servers, if it has one."""
    if planned.name not in placed:
        return planned
    rows = [0] * servers
    for part, of_part in zip(variable.parts, placed[planned.name], strict=True):
        for server, count in zip(of_part, Ownership.even(len(of_part)).counts(part.rows), strict=True):
            rows[server] += count
    return replace(planned, owner_rows=tuple(rows), servers=placed[planned.name])


def _check_known(spec: GraphSpec, name: str) -> None:
    names = [v.name for v in spec.variables]
    if name not in names:
        near = difflib.get_close_matches(name, names, n=3) or names[:10]
        raise PlanError(f"A variable must be one of the graph's, and {name!r} is not. Did you mean: {', '.join(near)}?")


def _plan_variable(variable: VariableSpec, layout: Layout, wishes: Wishes) -> VariablePlan:
    workers, wanted = layout.num_workers, wishes.routes.get(variable.name)
    touched = wishes.touched_rows.get(variable.name, variable.touched_rows_bound)
    options = _options(variable, layout, wishes, touched)
    servers = next((o for o in options if o.route == PS and _possible(o)), None)
    if wanted is not None:
        chosen, reason = _wanted(variable, options, wanted), "asked for in the configuration"
    elif servers is not None and (by_rule := _why_on_servers(variable, layout, wishes)):
        chosen, reason = servers, by_rule
    else:
        chosen, reason = _cheapest(variable, options, touched)
    if chosen.route != PS and not wishes.synchronous and options[0].route != NO_ROUTE:
        note = next(o.note for o in options if o.route == PS)
        why = f"ps is {note} ({variable.name})" if note else f"{variable.name} was given {chosen.route!r}"
        raise PlanError(f"Asynchronous training keeps all trained variables on servers: {why}.")
    rejected = tuple(_rejected(option, chosen) for option in options if option.route != chosen.route)
    owners = rows_by_owner(variable, Ownership.even(workers)) if chosen.route == ALLTOALL else ()
    return VariablePlan(
        name=variable.name,
        cls=variable.cls,
        shape=variable.shape,
        dtype=variable.dtype,
        route=chosen.route,
        owner_rows=owners,
        touched_rows=touched if variable.has_slices else None,
        cost=RouteCost(chosen.route, chosen.sent_bytes, chosen.rounds),
        reason=reason,
        rejected=rejected,
        slots=tuple(slot.name for slot in variable.slots),
        evidence=variable.evidence,
    )


def _why_on_servers(variable: VariableSpec, layout: Layout, wishes: Wishes) -> str:
    """Why a variable goes to servers although nobody asked for it by name; empty when it does not."""
    if not wishes.synchronous:
        return "asynchronous training"
    if wishes.run_option == "PS":
        return "run option PS"
    if layout.has_hosts_for_servers and _by_row(variable):
        return "there are hosts for servers only"
    return ""


def _by_row(variable: VariableSpec) -> bool:
    """Whether rows of a variable are looked up one by one, so that no worker needs it whole."""
    return variable.cls == VariableClass.SPARSE


def _options(variable: VariableSpec, layout: Layout, wishes: Wishes, touched: int | None) -> list[RouteCost]:
    """All routes with their costs; an impossible one says why in its note."""
    servers = _servers_option(variable, layout, wishes, touched)
    if variable.cls in (VariableClass.UNTRAINED, VariableClass.LOCAL):
        counted = variable.is_counter and not wishes.synchronous
        return [servers] if counted else [RouteCost(NO_ROUTE, 0, 0)]
    workers = layout.num_workers
    reduce_all = allreduce_cost(variable, workers)
    if not variable.has_slices or variable.cls in (VariableClass.DENSE, VariableClass.MIXED):
        note = f"impossible: its gradient is {'made ' if variable.has_slices else ''}dense"
        return [reduce_all, RouteCost(ALLGATHER, None, 1, note), RouteCost(ALLTOALL, None, 3, note), servers]
    gather = allgather_cost(variable, workers, touched)
    spread = alltoall_cost(variable, workers, touched)
    if variable.unmerged:
        reduce_all = RouteCost(ALLREDUCE, reduce_all.sent_bytes, 1, f"impossible: {variable.reason}")
    if variable.dtype not in _ROW_TYPES:
        note = f"impossible: Horovod sends no rows of {variable.dtype}"
        return [reduce_all, RouteCost(ALLGATHER, None, 1, note), RouteCost(ALLTOALL, None, 3, note), servers]
    if variable.cls == VariableClass.NOT_SHARDABLE:
        spread = RouteCost(ALLTOALL, spread.sent_bytes, 3, f"impossible: {variable.reason}")
    elif variable.rows < workers:
        few = f"impossible: {variable.rows} rows are fewer than {workers} workers"
        spread = RouteCost(ALLTOALL, spread.sent_bytes, 3, few)
    return [reduce_all, gather, spread, servers]


def _servers_option(variable: VariableSpec, layout: Layout, wishes: Wishes, touched: int | None) -> RouteCost:
    cost = ps_cost(variable, layout.num_workers, touched, _by_row(variable))
    why = ""
    if wishes.run_option == "MPI":
        why = "run option MPI starts no servers"
    elif not layout.servers:
        why = "no host may have a server"
    elif variable.name in wishes.refused:
        why = wishes.refused[variable.name]
    elif variable.cls == VariableClass.NOT_SHARDABLE:
        why = variable.reason
    elif wishes.synchronous and variable.dtype not in _ROW_TYPES:
        why = f"TensorFlow has no accumulators of {variable.dtype}"
    return RouteCost(PS, cost.sent_bytes, cost.rounds, f"impossible: {why}") if why else cost


def _possible(option: RouteCost) -> bool:
    return not option.note.startswith("impossible")


def _cheapest(variable: VariableSpec, options: list[RouteCost], touched: int | None) -> tuple[RouteCost, str]:
    possible = [option for option in options if _possible(option) and option.route != PS]
    if options[0].route == NO_ROUTE:
        own = variable.cls == VariableClass.LOCAL
        return options[0], "each worker keeps its own" if own else "no gradient: equal on all workers"
    if len(possible) == 1:
        return possible[0], f"the only route for a {variable.cls.value} gradient"
    unknown = [option for option in possible if option.sent_bytes is None]
    if unknown:
        return unknown[-1], "touched rows unknown: no static batch shape; see touched_rows"
    best = min(possible, key=lambda option: (option.sent_bytes or 0, option.rounds))
    whole = possible[0]
    if touched == variable.rows and whole.route == ALLREDUCE and _nearly_equal(whole, best):
        return whole, "every row may be touched: about the bytes of the other routes, in one round"
    return best, "fewest bytes" if (best.sent_bytes or 0) > 0 else "nothing to send to other workers"


def _nearly_equal(option: RouteCost, best: RouteCost) -> bool:
    """Within a fiftieth: less than what the formulas leave out (message headers, unequal owners)."""
    return 50 * (option.sent_bytes or 0) <= 51 * (best.sent_bytes or 0)


def _wanted(variable: VariableSpec, options: list[RouteCost], wanted: str) -> RouteCost:
    if wanted not in ROUTES:
        raise PlanError(f"A route must be one of {', '.join(ROUTES)}: {variable.name} was given {wanted!r}.")
    for option in options:
        if option.route == wanted:
            if _possible(option):
                return option
            raise PlanError(
                f"Route {wanted} is {option.note.replace('impossible', 'impossible for ' + variable.name, 1)}. "
                f"Possible: {', '.join(o.route for o in options if _possible(o))}."
            )
    raise PlanError(
        f"Route {wanted} is impossible for {variable.name}: it has no gradient. Leave it out of the routes."
    )


def _rejected(option: RouteCost, chosen: RouteCost) -> RouteCost:
    if option.note or option.sent_bytes is None or chosen.sent_bytes is None:
        return option
    if option.sent_bytes == chosen.sent_bytes:
        note = "equal bytes, no fewer rounds"
    elif chosen.sent_bytes == 0:
        note = "more bytes"
    else:
        note = f"{option.sent_bytes / chosen.sent_bytes:.2f} times the bytes"
    return RouteCost(option.route, option.sent_bytes, option.rounds, note)
