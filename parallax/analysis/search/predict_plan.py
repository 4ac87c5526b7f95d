"""Predicts the cost of an existing plan with profiles other than those it was made from."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

from parallax.analysis.routes.candidates import Candidate, list_candidates
from parallax.analysis.routes.owners import Shares, equal_shares
from parallax.analysis.search.route_all import problem_of, setting_of
from parallax.cluster.plan_inputs import PlanInputs
from parallax.graph.spec import GraphSpec
from parallax.plans.plan import PS, Layout, Plan, PlanConstraints


def step_seconds(
    spec: GraphSpec, plan: Plan, layout: Layout, constraints: PlanConstraints, measured: PlanInputs
) -> float | None:
    """The predicted step of a plan, comparable with that of another for the same layout, constraints and profiles.

    Simplification: all sharded tables have the owners of the first of them, by name, as in every plan that this package
    makes; a plan file may differ.

    Args:
        spec: the spec of the graph.
        plan: a plan of that graph.
        layout: the workers, and the servers that run.
        constraints: the user's requirements of other plans; routes and partitions are taken from the plan.
        measured: the profiles.

    Returns:
        Seconds; None without a cluster profile, or with one that lacks what the plan needs.
    """
    if measured.cluster is None or not plan.synchronous:
        return None
    free = replace(constraints, routes={}, partitions={})
    candidates = [_as_planned(c, plan) for c in list_candidates(spec, layout, free, measured)]
    setting, _ = setting_of(candidates, layout, free, measured, measured.cluster)
    if not all(candidate.allowed for candidate in setting.candidates):
        return None
    served = {n: (plan.variable(n).servers,) for n in setting.places if plan.variable(n).route == PS}
    setting = replace(setting, places={**setting.places, **served})
    problem = problem_of(setting, _shares(plan))
    return problem.step_seconds((0,) * len(setting.candidates))


def _as_planned(candidate: Candidate, plan: Plan) -> Candidate:
    """A variable with only the route of the plan."""
    if not candidate.allowed:
        return candidate
    return replace(candidate, allowed=(plan.variable(candidate.variable.name).route,))


def _shares(plan: Plan) -> Shares:
    pattern = next((v.owner_pattern for v in plan.variables if v.owner_pattern), ())
    if not pattern:
        return equal_shares(plan.num_workers)
    slots = Counter(pattern)
    divisor = math.gcd(*slots.values())
    return Shares(tuple(slots[worker] // divisor for worker in range(plan.num_workers)))
