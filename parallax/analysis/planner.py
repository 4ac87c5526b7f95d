"""Chooses a route for every variable: the one place that answers "which plan".

By rule, from bytes: dense gradients are all-reduced; sparse ones take the route with the fewest bytes, and of equal
ones that with the fewest rounds; a table of which every row may be touched is all-reduced where that costs no more.
Latency and link rates are not known here, so no time is predicted.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from parallax.analysis.cost import allgather_cost, allreduce_cost, alltoall_cost
from parallax.errors import PlanError
from parallax.plan import ALLGATHER, ALLREDUCE, ALLTOALL, NO_ROUTE, PLAN_VERSION, ROUTES, Plan, RouteCost, VariablePlan
from parallax.spec import GraphSpec, VariableClass, VariableSpec

_ROW_TYPES = ("float16", "float32", "float64")
"""What Horovod's all-to-all and allgather take; an all-reduce of bfloat16 travels as float32."""


def make_plan(
    spec: GraphSpec,
    num_workers: int,
    routes: Mapping[str, str] | None = None,
    touched_rows: Mapping[str, int] | None = None,
) -> Plan:
    """Plans a graph for a number of workers.

    Args:
        spec: what the graph is.
        num_workers: W.
        routes: variable name -> route that the user wants.
        touched_rows: variable name -> distinct rows a worker reads in a step, where the user knows better than the
            graph's static shapes.

    Raises:
        PlanError: when `routes` or `touched_rows` name an unknown variable, or ask for what is impossible.
    """
    routes, touched_rows = routes or {}, touched_rows or {}
    for name in (*routes, *touched_rows):
        _check_known(spec, name)
    for name, rows in touched_rows.items():
        most = spec.variable(name).rows
        if not 0 < rows <= most:
            raise PlanError(
                f"touched_rows must be between 1 and the variable's rows: {name} has {most}, and {rows} was given."
            )
    variables = tuple(
        _plan_variable(v, num_workers, routes.get(v.name), touched_rows.get(v.name, v.touched_rows_bound))
        for v in spec.variables
    )
    return Plan(PLAN_VERSION, spec.fingerprint, num_workers, variables, spec.notes)


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


def _check_known(spec: GraphSpec, name: str) -> None:
    names = [v.name for v in spec.variables]
    if name not in names:
        near = difflib.get_close_matches(name, names, n=3) or names[:10]
        raise PlanError(f"A variable must be one of the graph's, and {name!r} is not. Did you mean: {', '.join(near)}?")


def _plan_variable(variable: VariableSpec, workers: int, wanted: str | None, touched: int | None) -> VariablePlan:
    options = _options(variable, workers, touched)
    if wanted is not None:
        chosen, reason = _wanted(variable, options, wanted), "asked for in the configuration"
    else:
        chosen, reason = _cheapest(variable, options, touched)
    rejected = tuple(_rejected(option, chosen) for option in options if option.route != chosen.route)
    owners = tuple(_rows_of(rank, variable, workers) for rank in range(workers)) if chosen.route == ALLTOALL else ()
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


def _rows_of(rank: int, variable: VariableSpec, workers: int) -> int:
    return sum((part.rows - rank + workers - 1) // workers for part in variable.parts)


def _options(variable: VariableSpec, workers: int, touched: int | None) -> list[RouteCost]:
    """All routes with their costs; an impossible one says why in its note."""
    if variable.cls in (VariableClass.UNTRAINED, VariableClass.LOCAL):
        return [RouteCost(NO_ROUTE, 0, 0)]
    reduce_all = allreduce_cost(variable, workers)
    if not variable.has_slices or variable.cls in (VariableClass.DENSE, VariableClass.MIXED):
        note = f"impossible: its gradient is {'made ' if variable.has_slices else ''}dense"
        return [reduce_all, RouteCost(ALLGATHER, None, 1, note), RouteCost(ALLTOALL, None, 3, note)]
    gather = allgather_cost(variable, workers, touched)
    spread = alltoall_cost(variable, workers, touched)
    if variable.unmerged:
        reduce_all = RouteCost(ALLREDUCE, reduce_all.sent_bytes, 1, f"impossible: {variable.reason}")
    if variable.dtype not in _ROW_TYPES:
        note = f"impossible: Horovod sends no rows of {variable.dtype}"
        return [reduce_all, RouteCost(ALLGATHER, None, 1, note), RouteCost(ALLTOALL, None, 3, note)]
    if variable.cls == VariableClass.NOT_SHARDABLE:
        spread = RouteCost(ALLTOALL, spread.sent_bytes, 3, f"impossible: {variable.reason}")
    elif variable.rows < workers:
        few = f"impossible: {variable.rows} rows are fewer than {workers} workers"
        spread = RouteCost(ALLTOALL, spread.sent_bytes, 3, few)
    return [reduce_all, gather, spread]


def _possible(option: RouteCost) -> bool:
    return not option.note.startswith("impossible")


def _cheapest(variable: VariableSpec, options: list[RouteCost], touched: int | None) -> tuple[RouteCost, str]:
    possible = [option for option in options if _possible(option)]
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
