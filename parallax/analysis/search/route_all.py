"""Chooses routes, partitions and owners by measured cost: enumerates the options and returns the shortest step.

For a small model the choice is exact as a whole. Where the model is large, or hosts are of many kinds, part of the
choice is made by rules or by search; the bound that the plan prints states which choices it covers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from parallax.analysis.routes.candidates import Candidate
from parallax.analysis.routes.memory import Hosts, check_fits, footprint, hosts_of
from parallax.analysis.routes.owners import (
    ALL_SLOTS,
    MOST_SLOTS,
    Shares,
    VariableKinds,
    all_slots,
    equal_shares,
    kinds_of,
    shares_of,
    slots_by_rate,
)
from parallax.analysis.routes.placement import partition_count, place
from parallax.analysis.search.milp import LARGE, Solution, least_seconds, solve
from parallax.analysis.search.problem import Problem
from parallax.analysis.timing.route_seconds import Pricing, RouteOption
from parallax.analysis.timing.step_time import derive_step_load
from parallax.analysis.timing.topology import Topology, build_topology
from parallax.base.errors import NotEnoughMemory, PlanError
from parallax.cluster.plan_inputs import PlanInputs
from parallax.cluster.profiles import ClusterProfile
from parallax.plans.plan import ALLTOALL, PS, Layout, PlanConstraints

SERVERS_COMPARED = 2000
"""The largest product of variables and servers for which servers compete with other routes; beyond, placing all takes
too long.
"""

PLACES_COMPARED = 120
"""The largest number of server sets, over all variables, of which each is tried; beyond, one is chosen by the placement
rule.
"""

KINDS_SEARCHED = 6
"""The largest number of kinds of hosts whose slots are searched; beyond, and in large models, shares are equal or by
rate.
"""

_ROUNDS = 3
_NOTHING_FITS = "No choice of routes and owners fits the memory of the hosts. Add hosts or shrink the tables."

Servers = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class RoutedVariables:
    """The choice for the variables whose seconds are known.

    Attributes:
        problem: the problem.
        solution: the choice.
        shares: the owners' shares of sharded tables.
        bound_of: the choices that the solution's bound covers.
        notes: information for the user.
    """

    problem: Problem
    solution: Solution
    shares: Shares
    bound_of: str
    notes: tuple[str, ...] = ()

    @property
    def options(self) -> dict[str, RouteOption]:
        """The chosen option of each priced variable."""
        picked = zip(self.problem.names, self.problem.options, self.solution.picks, strict=True)
        return {name: options[pick] for name, options, pick in picked}


@dataclass(frozen=True, slots=True)
class Setting:
    """The inputs of a problem, except the shares of owners."""

    candidates: tuple[Candidate, ...]
    layout: Layout
    constraints: PlanConstraints
    measured: PlanInputs
    cluster: ClusterProfile
    places: Mapping[str, tuple[Servers, ...]]

    @property
    def servers(self) -> bool:
        """Whether any variable may be on servers."""
        return bool(self.places)

    def topology(self, shares: Shares) -> Topology:
        """The topology for which routes are priced."""
        return build_topology(self.layout, self.cluster, shares, self.constraints, self.servers)

    def hosts(self, shares: Shares) -> Hosts:
        """The hosts that limit memory."""
        return hosts_of(self.layout, shares, self.constraints, self.measured, self.servers)


def explain_unmeasured(
    candidates: Sequence[Candidate], layout: Layout, constraints: PlanConstraints, cluster: ClusterProfile
) -> str:
    """Why no times can be predicted with a profile: the measurements that it lacks; empty when none is missing."""
    topology = build_topology(layout, cluster, equal_shares(layout.num_workers), constraints, False)
    for candidate in candidates:
        lacking = [topology.missing(route) for route in candidate.allowed]
        if candidate.is_priced and all(lacking):
            return f"the cluster profile has no {' and '.join(lacking[0])}; measure it with `parallax calibrate`"
    return ""


def setting_of(
    candidates: Sequence[Candidate],
    layout: Layout,
    constraints: PlanConstraints,
    measured: PlanInputs,
    cluster: ClusterProfile,
) -> tuple[Setting, tuple[str, ...]]:
    """The variables to choose routes for, sorted by name, and notes on options that are not considered."""
    topology = build_topology(layout, cluster, equal_shares(layout.num_workers), constraints, False)
    priced = sorted((c for c in candidates if c.is_priced), key=lambda c: c.variable.name)
    compares = len(priced) * len(layout.servers) <= SERVERS_COMPARED
    usable, notes = [], []
    for candidate in priced:
        routes = tuple(r for r in candidate.allowed if not topology.missing(r))
        if not compares and len(routes) > 1 and PS in routes:
            routes = tuple(r for r in routes if r != PS)
            notes = ["ps was not compared with other routes: there are too many variables and servers"]
        usable.append(replace(candidate, allowed=routes))
    places = _places([c for c in usable if PS in c.allowed], layout, constraints)
    return Setting(tuple(usable), layout, constraints, measured, cluster, places), tuple(notes)


def problem_of(setting: Setting, shares: Shares) -> Problem:
    """Every option of every variable, priced."""
    hosts = setting.hosts(shares)
    pricing = Pricing(setting.topology(shares), setting.constraints.wire_dtype, setting.constraints.accumulate_steps)
    options = [_options(setting, pricing, hosts, candidate) for candidate in setting.candidates]
    names = tuple(c.variable.name for c in setting.candidates)
    load = derive_step_load(setting.measured, setting.layout, setting.constraints.accumulate_steps)
    return Problem(names, tuple(options), pricing, load, hosts)


def price(
    setting: Setting, pricing: Pricing, hosts: Hosts, candidate: Candidate, route: str, servers: Servers
) -> RouteOption:
    """One route of one variable."""
    workers, batches = setting.layout.num_workers, setting.constraints.accumulate_steps
    memory = footprint(candidate.variable, route, candidate.touched, workers, servers, batches)
    return pricing.price(candidate.variable, route, candidate.touched, hosts.bytes_of(memory), servers)


def _options(setting: Setting, pricing: Pricing, hosts: Hosts, candidate: Candidate) -> tuple[RouteOption, ...]:
    return tuple(
        price(setting, pricing, hosts, candidate, route, servers)
        for route in candidate.allowed
        for servers in (setting.places[candidate.variable.name] if route == PS else ((),))
    )


def reprice(setting: Setting, problem: Problem, number: int, candidate: Candidate, rows: float) -> Problem:
    """The problem for another number of touched rows of its variable `number`, which is the candidate."""
    if candidate.touched is None:
        raise ValueError("Only a variable looked up by row has touched rows.")
    candidate = replace(candidate, touched=candidate.touched.scaled_to(rows))
    options = list(problem.options)
    options[number] = _options(setting, problem.pricing, problem.hosts, candidate)
    return replace(problem, options=tuple(options))


def route_all(setting: Setting, notes: tuple[str, ...] = ()) -> RoutedVariables:
    """Chooses routes, partitions and owners.

    Raises:
        PlanError: nothing fits into memory.
    """
    kinds = _kinds(setting)
    spreads = any(ALLTOALL in c.allowed for c in setting.candidates)
    partly = "" if _all_places(setting) else ", with partitions placed by rule"
    if len(kinds.rates) < 2 or not spreads:
        shares = equal_shares(setting.layout.num_workers)
        problem = _check(setting, problem_of(setting, shares))
        return RoutedVariables(problem, solve(problem), shares, f"all routes{partly}", notes)
    columns = sum(len(c.allowed) for c in setting.candidates)
    if len(kinds.rates) <= ALL_SLOTS and columns <= LARGE:
        best, bound_s = _best_of_all(setting, kinds)
        return replace(
            best,
            solution=replace(best.solution, bound_s=min(bound_s, best.solution.step_s)),
            bound_of=f"all routes and owners{partly}",
            notes=notes,
        )
    return replace(_search(setting, kinds), bound_of=f"all routes, with these owners{partly}", notes=notes)


def _best_of_all(setting: Setting, kinds: VariableKinds) -> tuple[RoutedVariables, float]:
    """The best of all patterns, the first of equal ones, and a bound that covers all of them."""
    best, bound_s = None, math.inf
    for slots in all_slots(kinds):
        problem = problem_of(setting, shares_of(setting.layout, kinds, slots))
        least_s = least_seconds(problem)
        if best is not None and least_s >= best.solution.step_s:
            bound_s = min(bound_s, least_s)
            continue
        routed = _route(problem, shares_of(setting.layout, kinds, slots))
        if routed is None:
            continue
        bound_s = min(bound_s, routed.solution.bound_s)
        if best is None or routed.solution.step_s < best.solution.step_s * (1 - 1e-9):
            best = routed
    if best is None:
        _check(setting, problem_of(setting, equal_shares(setting.layout.num_workers)))
        raise NotEnoughMemory(_NOTHING_FITS)
    return best, bound_s


def _search(setting: Setting, kinds: VariableKinds) -> RoutedVariables:
    """Starts with shares equal or by rate; then alternates between routes for the shares and shares for the routes."""
    slots = slots_by_rate(kinds)
    both = (equal_shares(setting.layout.num_workers), shares_of(setting.layout, kinds, slots))
    searched = [routed for routed in (_route(problem_of(setting, shares), shares) for shares in both) if routed]
    if not searched:
        _check(setting, problem_of(setting, both[0]))
        raise NotEnoughMemory(_NOTHING_FITS)
    best = min(searched, key=lambda routed: routed.solution.step_s)
    slots = slots if best is not searched[0] else (1,) * len(slots)
    searches = len(kinds.rates) <= KINDS_SEARCHED and best.problem.columns <= LARGE
    for _ in range(_ROUNDS if searches else 0):
        slots = _better_slots(setting, kinds, slots, best)
        if shares_of(setting.layout, kinds, slots) == best.shares:
            break
        shares = shares_of(setting.layout, kinds, slots)
        routed = _route(problem_of(setting, shares), shares)
        if routed is None or routed.solution.step_s >= best.solution.step_s:
            break
        best = routed
    return best


def _better_slots(
    setting: Setting, kinds: VariableKinds, slots: tuple[int, ...], routed: RoutedVariables
) -> tuple[int, ...]:
    """The slots with the shortest step for the chosen routes, one kind changed at a time."""
    chosen = tuple(
        replace(candidate, allowed=(options[pick].route,))
        for candidate, options, pick in zip(
            setting.candidates, routed.problem.options, routed.solution.picks, strict=True
        )
    )
    places = {
        name: (options[pick].servers,)
        for name, options, pick in zip(routed.problem.names, routed.problem.options, routed.solution.picks, strict=True)
        if options[pick].route == PS
    }
    fixed = replace(setting, candidates=chosen, places=places)
    picks = (0,) * len(chosen)

    def step_s(of: tuple[int, ...]) -> float:
        problem = problem_of(fixed, shares_of(setting.layout, kinds, of))
        return problem.step_seconds(picks) if problem.fits(picks) else float("inf")

    best, best_s = slots, step_s(slots)
    for kind in range(1, len(slots)):
        for level in range(MOST_SLOTS + 1):
            candidate_slots = (*best[:kind], level, *best[kind + 1 :])
            if (tried_s := step_s(candidate_slots)) < best_s * (1 - 1e-9):
                best, best_s = candidate_slots, tried_s
    return best


def _route(problem: Problem, shares: Shares) -> RoutedVariables | None:
    """The best routes for given shares; None when nothing fits."""
    try:
        return RoutedVariables(problem, solve(problem), shares, "")
    except PlanError:
        return None


def _check(setting: Setting, problem: Problem) -> Problem:
    """Refuses a problem in which some host is too small for every choice."""
    takes = {n: [o.memory for o in options] for n, options in zip(problem.names, problem.options, strict=True)}
    if takes:
        check_fits(problem.hosts, takes, [host.name for host in setting.cluster.hosts])
    return problem


def _kinds(setting: Setting) -> VariableKinds:
    if len(setting.layout.hosts) < 2:
        return VariableKinds((0,), (0.0,))
    return kinds_of(setting.layout, setting.cluster)


def _places(
    candidates: Sequence[Candidate], layout: Layout, constraints: PlanConstraints
) -> dict[str, tuple[Servers, ...]]:
    """The sets of servers that are tried for every variable that may be on servers."""
    if not candidates:
        return {}
    number = len(layout.servers)
    variables = [c.variable for c in candidates]
    loads = {c.variable.name: float(_ps_bytes(c)) for c in candidates}
    ruled = place(variables, loads, number, constraints.partitions)
    free = [v for v in variables if v.name not in constraints.partitions and len(v.parts) == 1]
    if len(free) * (2**number - 1) > PLACES_COMPARED:
        free = []
    places_by_variable: dict[str, tuple[Servers, ...]] = {}
    for variable in variables:
        places_by_variable[variable.name] = (ruled[variable.name],)
        if variable in free:
            most = partition_count(variable, 0, number, None) if not variable.shape else min(number, variable.rows)
            sets = (s for size in range(1, most + 1) for s in itertools.combinations(range(number), size))
            places_by_variable[variable.name] = tuple((s,) for s in sets)
    return places_by_variable


def _all_places(setting: Setting) -> bool:
    """Whether every set of servers is tried."""
    number = len(setting.layout.servers)
    sets: int = len(setting.places) * (2**number - 1)
    return sets <= PLACES_COMPARED


def _ps_bytes(candidate: Candidate) -> int:
    cost = next(cost for cost in candidate.costs if cost.route == PS)
    return cost.sent_bytes or 2 * candidate.variable.value_bytes
