"""Lists the routes of a variable: the bytes that each would send, and whether it is possible at all.

A route that is requested by name takes precedence over the run option, but MPI refuses `ps`. HYBRID never chooses `ps`
by bytes; where some hosts have servers and no workers, variables looked up by row go to servers. PS puts every variable
with a gradient that can be on servers there, and sums over workers go through the servers too. Asynchronous training
puts all of them there, by any option but MPI, and also variables that are only incremented with them, such as the
global step; a variable that cannot be there is an error. Servers are impossible for variables that propagation refused,
for the class `not shardable` and, in synchronous training, for types without accumulators (all but float16, float32,
float64).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from parallax.analysis.routes.cost import StepRows, allgather_cost, allreduce_cost, alltoall_cost, ps_cost
from parallax.base.errors import PlanError
from parallax.graph.spec import VariableClass, VariableSpec
from parallax.plans.plan import (
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    NO_ROUTE,
    PS,
    ROUTES,
    Layout,
    PlanConstraints,
    RouteCost,
    server_fronts,
)

_ROW_TYPES = ("float16", "float32", "float64")
"""The element types that Horovod's all-to-all and allgather and TensorFlow's accumulators support; an all-reduce of
bfloat16 travels as float32.
"""


@dataclass(frozen=True, slots=True)
class RouteChoice:
    """A route of a variable, possible or not.

    Attributes:
        cost: the bytes that the route would send.
        why_not: why the route is impossible; None where it is possible.
    """

    cost: RouteCost
    why_not: str | None = None

    @property
    def route(self) -> str:
        """The route's name."""
        return self.cost.route

    @property
    def is_possible(self) -> bool:
        """Whether the route is possible at all."""
        return self.why_not is None

    def describe_cost(self) -> RouteCost:
        """The cost as a plan reports it: that of an impossible route has the reason in its note."""
        return self.cost if self.is_possible else replace(self.cost, note=f"impossible: {self.why_not}")


def explain_servers(variable: VariableSpec, layout: Layout, constraints: PlanConstraints) -> str:
    """Why a variable goes to servers although no route was requested by name; empty when it does not."""
    if not constraints.synchronous:
        return "asynchronous training"
    if constraints.run_option == "PS":
        return "run option PS"
    if layout.has_hosts_for_servers and is_by_row(variable):
        return "some hosts run servers only"
    return ""


def is_by_row(variable: VariableSpec) -> bool:
    """Whether rows of a variable are looked up individually, so that no worker needs all of it."""
    return variable.cls == VariableClass.SPARSE


def options_of(
    variable: VariableSpec, layout: Layout, constraints: PlanConstraints, rows: StepRows | None
) -> list[RouteChoice]:
    """All routes with their costs, including impossible ones."""
    servers = _servers_option(variable, layout, constraints, rows)
    if variable.cls in (VariableClass.UNTRAINED, VariableClass.LOCAL):
        counted = variable.is_counter and not constraints.synchronous
        return [servers] if counted else [RouteChoice(RouteCost(NO_ROUTE, 0, 0))]
    workers = layout.num_workers
    reduce_all = RouteChoice(allreduce_cost(variable, workers, constraints.wire_dtype))
    if not variable.has_slices or variable.cls in (VariableClass.DENSE, VariableClass.MIXED):
        return [reduce_all, *_no_rows(f"its gradient is {'made ' if variable.has_slices else ''}dense"), servers]
    gather = RouteChoice(allgather_cost(variable, workers, rows, constraints.wire_dtype))
    spread = alltoall_cost(variable, workers, rows, constraints.wire_dtype)
    why_not = None
    if variable.unmerged:
        reduce_all = RouteChoice(RouteCost(ALLREDUCE, reduce_all.cost.sent_bytes, 1), variable.reason)
    if variable.dtype not in _ROW_TYPES:
        return [reduce_all, *_no_rows(f"Horovod cannot send rows of type {variable.dtype}"), servers]
    if variable.cls == VariableClass.NOT_SHARDABLE:
        why_not = variable.reason
    elif variable.rows < workers:
        why_not = f"fewer rows ({variable.rows}) than workers ({workers})"
    return [reduce_all, gather, RouteChoice(spread, why_not), servers]


def _no_rows(why_not: str) -> tuple[RouteChoice, RouteChoice]:
    """The row routes of a variable without gradient rows."""
    return RouteChoice(RouteCost(ALLGATHER, None, 1), why_not), RouteChoice(RouteCost(ALLTOALL, None, 3), why_not)


def _servers_option(
    variable: VariableSpec, layout: Layout, constraints: PlanConstraints, rows: StepRows | None
) -> RouteChoice:
    has_fronts = constraints.synchronous and bool(server_fronts(layout.host_by_rank, layout.servers))
    cost = ps_cost(variable, layout.num_workers, rows, is_by_row(variable), has_fronts, constraints.wire_dtype)
    why = ""
    if constraints.run_option == "MPI":
        why = "run option MPI starts no servers"
    elif not layout.servers:
        why = "the resource file allows no server on any host"
    elif variable.name in constraints.refused:
        why = constraints.refused[variable.name]
    elif variable.cls == VariableClass.NOT_SHARDABLE:
        why = variable.reason
    elif variable.is_open:
        why = "its shape was unknown when it was built"
    elif constraints.synchronous and variable.dtype not in _ROW_TYPES:
        why = f"TensorFlow has no gradient accumulators of type {variable.dtype}"
    return RouteChoice(RouteCost(PS, cost.sent_bytes, cost.rounds) if why else cost, why or None)


def choose_cheapest(
    variable: VariableSpec, options: Sequence[RouteCost], allowed: Sequence[str], touched: int | None
) -> tuple[RouteCost, str]:
    """The allowed route with the fewest bytes, and why; servers are not compared."""
    can = [option for option in options if option.route in allowed and option.route != PS]
    if options[0].route == NO_ROUTE:
        is_local = variable.cls == VariableClass.LOCAL
        return options[0], ("each worker keeps its own") if is_local else "no gradient: equal on all workers"
    if len(can) == 1:
        return can[0], f"the only route for a {variable.cls.value} gradient"
    unknown = [option for option in can if option.sent_bytes is None]
    if unknown:
        return unknown[-1], "touched rows unknown: no static batch shape; see touched_rows"
    best = min(can, key=lambda option: (option.sent_bytes or 0, option.rounds))
    if not best.sent_bytes:  # one worker: rows stay rows, and nothing is densified for an exchange that does not happen
        best = next((option for option in can if option.route == ALLGATHER), best)
    whole = can[0]
    if touched == variable.rows and whole.route == ALLREDUCE and _nearly_equal(whole, best):
        return whole, "a step may touch every row: about the same bytes as the other routes, in one round"
    return best, "fewest bytes" if (best.sent_bytes or 0) > 0 else "nothing to send to other workers"


def _nearly_equal(option: RouteCost, best: RouteCost) -> bool:
    """Whether two costs differ by 2% at most: less than the formulas leave out (message headers, unequal owners)."""
    return 50 * (option.sent_bytes or 0) <= 51 * (best.sent_bytes or 0)


def find_requested_option(variable: VariableSpec, options: list[RouteChoice], requested: str) -> RouteChoice:
    """The route that was requested.

    Raises:
        PlanError: it is impossible.
    """
    if requested not in ROUTES:
        raise PlanError(
            f"The route of variable {variable.name!r} must be one of {', '.join(ROUTES)}, got {requested!r}."
        )
    for option in options:
        if option.route == requested:
            if option.is_possible:
                return option
            raise PlanError(
                f"Variable {variable.name!r} cannot take route {requested}: {option.why_not}. Possible routes: "
                f"{', '.join(o.route for o in options if o.is_possible)}."
            )
    raise PlanError(
        f"Variable {variable.name!r} cannot take route {requested}: it has no gradient. Remove it from routes."
    )
