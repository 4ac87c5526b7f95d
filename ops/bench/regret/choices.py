"""Plans of generated models: the chosen one, and the others that are measured. One process makes all.

All possible routes of all variables are combined; on servers a variable has the partitions of the placement rule. Plans
that are not predicted to be too slow are measured in this order, up to a limit: the chosen plan, plans with one route
for all tables, the rest by predicted step time.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ops.bench.jobs import feeds
from ops.bench.race.models import model_of
from ops.bench.race.turns import Task, write_task
from ops.bench.regret.alternatives import Alternative, alternatives
from ops.bench.regret.cases import FAR, Case, Choice, Model
from parallax.analysis.routes.placement import partition_count
from parallax.cluster.plan_inputs import PlanInputs
from parallax.cluster.profiles import ClusterProfile
from parallax.graph.spec import GraphSpec
from parallax.plans.plan import NO_ROUTE, PS, Layout, Plan, PlanConstraints
from parallax.settings.config import Config
from parallax.settings.environment import Role, Settings

STEPS_PROFILED = 6


def analysed_of(sizes: dict[str, Any]) -> tuple[Any, Any, Any, Any]:
    """Returns (graph, its analysis, training op, feeds by name) of a generated model; the same in every process."""
    import tensorflow as tf

    from parallax.analysis.graph_to_plan import analyse

    graph = tf.Graph()
    with graph.as_default():
        built = model_of("generated", **sizes).build()
        train = built.optimizer.minimize(built.loss)
    return graph, analyse(graph), train, built.feeds


def measured_of(model: Model, cluster: ClusterProfile, folder: Path, graph: Any, analysed: Any) -> PlanInputs:
    """Profiles a model, and returns the profiles of the cluster and the model."""
    from parallax.runtime.measure.samples import profile_samples

    workers = len(cluster.hosts)
    task = Task("parallax", "generated", model.sizes, str(folder / f"task-{model.number}"), workers, 1, 2, {})
    wanted = Settings(role=Role.PROFILE, steps=STEPS_PROFILED, compute=True, feeds=f"{feeds.__file__}:batch")
    with _acting_for_task(task):
        profile, _ = profile_samples(graph, analysed, workers, Config(sess_config=task.session_config()), wanted)
    return PlanInputs(cluster, profile)


@contextmanager
def _acting_for_task(task: Task) -> Iterator[None]:
    """Makes this process act as if it had been started for the task, inside a `with` block."""
    write_task(task)
    before = sys.argv
    sys.argv = [before[0], str(task.file)]
    try:
        yield
    finally:
        sys.argv = before


def case_of(model: Model, cluster: ClusterProfile, folder: Path, most: int) -> Case:
    """Plans a model, and returns its case.

    Args:
        model: the model to plan.
        cluster: the profile of its hosts, with a worker and a server on each.
        folder: the folder for files.
        most: the most plans to measure.
    """
    graph, analysed, _, _ = analysed_of(model.sizes)
    measured = measured_of(model, cluster, folder, graph, analysed)
    return chosen_and_others(model, analysed, measured, most)


def sides_of(model: Model, rates: Sequence[int], clusters: Sequence[ClusterProfile], folder: Path) -> Iterator[Case]:
    """Yields a case per rate: the best plan there, then the plans of the other rates with their predictions there."""
    from parallax.analysis.graph_to_plan import make_feasible_plan

    graph, analysed, _, _ = analysed_of(model.sizes)
    first = measured_of(model, clusters[0], folder, graph, analysed)
    known = [replace(first, cluster=cluster) for cluster in clusters]
    layout = _layout(first)
    best = [make_feasible_plan(analysed, layout, PlanConstraints(), one) for one in known]
    for rate, own, measured in zip(rates, best, known, strict=True):
        others = [_replanned(analysed, layout, measured, plan) for plan in best if plan is not own]
        choices = tuple(map(_choice, (own, *others)))
        yield Case(replace(model, rate_bytes_per_s=rate), choices, len(choices), 0, 0)


def _replanned(analysed: Any, layout: Layout, measured: PlanInputs, plan: Plan) -> Plan:
    """Plans with another plan's routes, by the profile of another cluster."""
    served = {v.name: len(v.servers[0]) for v in plan.variables if v.servers}
    routes = _routes(plan)
    return _plan(analysed, layout, measured, routes, served)


def _layout(measured: PlanInputs) -> Layout:
    """Returns a layout with a worker and a server on each host."""
    hosts = len(measured.cluster.hosts) if measured.cluster is not None else 1
    return Layout((1,) * hosts, tuple(range(hosts)))


def chosen_and_others(model: Model, analysed: Any, measured: PlanInputs, most: int) -> Case:
    """Returns the case of a profiled model."""
    from parallax.analysis.graph_to_plan import make_feasible_plan

    layout = _layout(measured)
    hosts = len(layout.hosts)
    spec: GraphSpec = analysed.spec
    chosen = make_feasible_plan(analysed, layout, PlanConstraints(), measured)
    counts = {v.name: partition_count(v, 0, hosts, None) for v in spec.variables if v.name in _routes(chosen)}
    every = sorted(
        alternatives(spec, layout, PlanConstraints(partitions=counts), measured),
        key=lambda a: (a.step_s, sorted(a.routes.items())),
    )
    other = [a for a in every if a.routes != _routes(chosen)]
    near = [a for a in other if a.step_s < FAR * every[0].step_s]
    picked = _picked(near, spec, most - 1)
    plans = [chosen, *(_plan(analysed, layout, measured, a.routes, counts) for a in picked)]
    return Case(model, tuple(map(_choice, plans)), len(other) + 1, len(other) - len(near), len(near) - len(picked))


def _choice(plan: Plan) -> Choice:
    return Choice(tuple(sorted(_routes(plan).items())), plan.prediction.step_s or 0.0, plan.to_json())


def _routes(plan: Plan) -> dict[str, str]:
    return {v.name: v.route for v in plan.variables if v.route != NO_ROUTE}


def _picked(near: Sequence[Alternative], spec: GraphSpec, most: int) -> list[Alternative]:
    tables = [v.name for v in spec.variables if v.has_slices]

    fastest: dict[str, Alternative] = {}
    for one in near:  # in order of predicted step time
        of_tables = {one.routes[name] for name in tables if name in one.routes}
        if len(of_tables) == 1:
            fastest.setdefault(of_tables.pop(), one)
    first = list(fastest.values())
    return [*first, *(one for one in near if one not in first)][:most]


def _plan(analysed: Any, layout: Layout, measured: PlanInputs, routes: dict[str, str], counts: dict[str, int]) -> Plan:
    """Returns the plan with these routes, and with `counts` partitions of variables on servers."""
    from parallax.analysis.graph_to_plan import make_feasible_plan

    served = {name: counts[name] for name, route in routes.items() if route == PS}
    return make_feasible_plan(analysed, layout, PlanConstraints(routes=routes, partitions=served), measured)
