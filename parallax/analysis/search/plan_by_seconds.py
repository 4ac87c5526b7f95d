"""The plan by predicted seconds: the choice, the cost of each route, and the breakdown of the step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from parallax.analysis.routes.candidates import (
    Candidate,
    place_on_servers,
    plan_of,
    planned_by_rule,
    rejected_by_bytes,
    variable_plan,
)
from parallax.analysis.routes.owners import Shares
from parallax.analysis.routes.placement import place
from parallax.analysis.search.flips import find_flips
from parallax.analysis.search.route_all import RoutedVariables, Setting, price, route_all, setting_of
from parallax.analysis.timing.route_seconds import FULL, PHASES, Pricing, RouteOption
from parallax.analysis.timing.step_time import StepLoad, Totals, timeline
from parallax.analysis.timing.topology import Topology
from parallax.cluster.plan_inputs import PlanInputs
from parallax.graph.spec import GraphSpec
from parallax.plans.plan import PS, Layout, Plan, PlanConstraints, RouteCost, VariablePlan
from parallax.plans.prediction import CostTerm, HostLoad, Prediction, RunnerUp

_EQUAL = 1e-9
"""Relative difference of steps that counts as rounding."""


def timed_plan(
    spec: GraphSpec, layout: Layout, constraints: PlanConstraints, measured: PlanInputs, candidates: list[Candidate]
) -> tuple[Plan, Shares, Prediction]:
    """Plans with a cluster profile.

    Returns:
        The plan without its prediction; the owners' shares of sharded tables; the prediction.

    Raises:
        PlanError: when nothing fits into memory.
    """
    if measured.cluster is None:
        raise ValueError("A plan by seconds needs a cluster profile.")
    setting, notes = setting_of(candidates, layout, constraints, measured, measured.cluster)
    routed = route_all(setting, notes)
    totals = routed.problem.totals(routed.solution.picks)
    costs = _Costs(setting, routed, totals)
    rest = [planned_by_rule(c, layout) for c in candidates if not c.is_priced]
    planned = {p.name: p for p in rest} | {c.variable.name: costs.plan_variable(c) for c in setting.candidates}
    flips = find_flips(setting, routed, {n: planned[n].cost.seconds or 0.0 for n in routed.problem.names})
    planned = {name: replace(p, flips=flips.get(name, ())) for name, p in planned.items()}
    places = _places_by_rule(setting, rest, spec)
    options, variables = routed.options, []
    for candidate in sorted(candidates, key=lambda c: c.variable.name):
        name = candidate.variable.name
        option = options.get(name)
        placed = places.get(name, ()) if option is None else option.servers
        variables.append(place_on_servers(candidate.variable, planned[name], placed, len(layout.servers)))
    unknown = [p.name for p in rest if p.cost.sent_bytes is None]
    missing = (f"predicted times exclude {', '.join(unknown)}, whose touched rows are unknown",) if unknown else ()
    plan = plan_of(spec, layout, constraints, tuple(variables), (*routed.notes, *missing))
    return plan, routed.shares, _prediction(routed, totals)


def _prediction(routed: RoutedVariables, totals: Totals) -> Prediction:
    load, step_s, bound_s = routed.problem.load, routed.solution.step_s, routed.solution.bound_s
    return Prediction(
        step_s=step_s,
        has_compute=load.has_compute,
        phases=timeline(totals, load),
        loads=_loads(routed),
        lower_bound_s=bound_s,
        gap=(step_s - bound_s) / step_s if step_s > 0 else 0.0,
        bound_of=routed.bound_of,
    )


def _loads(routed: RoutedVariables) -> tuple[HostLoad, ...]:
    """The load of each host's link in a step; that of the busiest owner, where it may be on any of them."""
    topology: Topology = routed.problem.pricing.topology
    carried = np.zeros((len(PHASES), len(topology.ends)))
    for options, pick in zip(routed.problem.options, routed.solution.picks, strict=True):
        carried += options[pick].link_bytes
    by_end = carried.sum(axis=0)
    return tuple(
        HostLoad(host, round(float(by_end[out])), round(float(by_end[into])))
        for host, (out, into) in enumerate(topology.ends_of_host)
    )


def _places_by_rule(
    setting: Setting, rest: list[VariablePlan], spec: GraphSpec
) -> dict[str, tuple[tuple[int, ...], ...]]:
    """The placement of variables on servers that are not priced."""
    served = [spec.variable(p.name) for p in rest if p.route == PS]
    loads = {v.name: float(2 * v.value_bytes) for v in served}
    return place(served, loads, len(setting.layout.servers), setting.constraints.partitions) if served else {}


class _Costs:
    """The cost that each route of a variable adds to the predicted step, all others as planned."""

    def __init__(self, setting: Setting, routed: RoutedVariables, totals: Totals) -> None:
        self.setting, self.routed, self.totals = setting, routed, totals
        self.load: StepLoad = routed.problem.load
        self.pricing: Pricing = routed.problem.pricing
        self.hosts = routed.problem.hosts
        self.number = {name: number for number, name in enumerate(routed.problem.names)}
        self.limits = np.array(self.hosts.limits)
        picked = zip(routed.problem.options, routed.solution.picks, strict=True)
        self.taken = sum((options[pick].memory for options, pick in picked), np.zeros(len(self.limits)))

    def plan_variable(self, candidate: Candidate) -> VariablePlan:
        """The plan of one variable, without its servers."""
        number = self.number[candidate.variable.name]
        options = self.routed.problem.options[number]
        chosen = options[self.routed.solution.picks[number]]
        self.totals.remove(chosen)
        without_s = self.totals.step_seconds(self.load)
        priced = [self._with(candidate, cost, options, chosen, without_s) for cost in candidate.costs]
        self.totals.add(chosen)
        chosen_cost = next(cost for cost, _ in priced if cost.route == chosen.route)
        others = [(cost, fits) for cost, fits in priced if cost.route != chosen.route]
        rejected = tuple(self._reject(candidate, cost, chosen_cost, fits) for cost, fits in others)
        able = [c for c, fits in others if c.seconds is not None and c.route in candidate.allowed and fits]
        second = min(able, key=lambda c: (c.seconds or 0.0, c.rounds), default=None)
        runner_up = (
            None if second is None else RunnerUp(second.route, (second.seconds or 0.0) - (chosen_cost.seconds or 0.0))
        )
        planned = variable_plan(
            candidate, chosen_cost, self._reason(candidate, runner_up), rejected, self.routed.shares
        )
        return replace(planned, runner_up=runner_up)

    def _with(
        self,
        candidate: Candidate,
        cost: RouteCost,
        options: tuple[RouteOption, ...],
        chosen: RouteOption,
        without_s: float,
    ) -> tuple[RouteCost, bool]:
        """The cost of one route with its seconds, where they are known; and whether it fits into memory."""
        if cost.route == chosen.route:
            return self._add_seconds(cost, chosen, without_s), True
        priced = [option for option in options if option.route == cost.route]
        if not priced and cost.route not in candidate.allowed and not cost.note:
            priced = self._price(candidate, cost.route)
        if not priced:
            return cost, True
        fitting = [o for o in priced if np.all(self.taken - chosen.memory + o.memory <= self.limits)]
        timed = [self._add_seconds(cost, option, without_s) for option in fitting or priced]
        return min(timed, key=lambda c: c.seconds or 0.0), bool(fitting)

    def _price(self, candidate: Candidate, route: str) -> list[RouteOption]:
        """Prices a possible route that a request or a rule has excluded; servers only where places are known."""
        topology = self.pricing.topology
        if route == PS or topology.missing(route) or (candidate.touched is None and candidate.variable.has_slices):
            return []
        return [price(self.setting, self.pricing, self.hosts, candidate, route, ())]

    def _add_seconds(self, cost: RouteCost, option: RouteOption, without_s: float) -> RouteCost:
        self.totals.add(option)
        seconds = self.totals.step_seconds(self.load) - without_s
        self.totals.remove(option)
        seconds = 0.0 if abs(seconds) <= _EQUAL * without_s else seconds
        return replace(cost, seconds=seconds, terms=self._terms(option))

    def _terms(self, option: RouteOption) -> tuple[CostTerm, ...]:
        """The isolated cost of an option, phase by phase, at its own busiest end."""
        cost_terms = []
        waits, on_link = option.waits[FULL].copy(), option.link[FULL]
        for charge in option.charges:
            waits += self.pricing.charges[charge][FULL]
        for phase, name in enumerate(PHASES):
            rounds_s = float(waits[phase].max())
            if rounds_s > 0:
                cost_terms.append(CostTerm(name, "rounds", rounds_s))
            end = int((option.extra_s[phase] + on_link[phase]).argmax())
            moved = round(float(option.link_bytes[phase, end]))
            for what, seconds in (("link", on_link[phase, end]), ("beside", option.extra_s[phase, end])):
                if seconds > 0:
                    cost_terms.append(CostTerm(name, what, float(seconds), moved))
        return tuple(cost_terms)

    def _reject(self, candidate: Candidate, cost: RouteCost, chosen_cost: RouteCost, fits: bool) -> RouteCost:
        if cost.note:
            return cost
        if cost.seconds is None:
            lacking = self.pricing.topology.missing(cost.route)
            note = f"not measured: {' and '.join(lacking)}" if lacking else "not compared"
            return replace(rejected_by_bytes(cost, chosen_cost), note=note)
        if not fits:
            return replace(cost, note="does not fit into memory")
        more_s = cost.seconds - (chosen_cost.seconds or 0.0)
        if cost.route not in candidate.allowed:
            return replace(cost, note=f"{1e3 * more_s:+.3g} ms a step")
        return replace(cost, note=f"{1e3 * more_s:+.3g} ms a step" if more_s > 0 else "no shorter step")

    def _reason(self, candidate: Candidate, runner_up: RunnerUp | None) -> str:
        if candidate.reason:
            return candidate.reason
        if len(candidate.allowed) == 1:
            return f"the only route for a {candidate.variable.cls.value} gradient"
        if runner_up is None:
            return "the only route that fits into memory, or was measured"
        return "shortest step" if runner_up.more_s > 0 else "as short a step as any other, and least by itself"
