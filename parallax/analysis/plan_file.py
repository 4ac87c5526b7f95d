"""Reads a plan from a file and checks it against the graph, the job and the settings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from parallax.analysis.cut.plan_stages import count_stages, layout_of_replicas
from parallax.analysis.planner import make_plan
from parallax.analysis.routes.candidates import rows_by_owner
from parallax.base.errors import PlanError
from parallax.graph.ownership import Ownership
from parallax.graph.spec import GraphSpec
from parallax.plans.plan import ALLTOALL, NO_ROUTE, Layout, Plan, PlanConstraints, VariablePlan, read_plan
from parallax.settings.config import Config


def plan_of_file(path: Path, spec: GraphSpec, layout: Layout, config: Config, synchronous: bool) -> Plan:
    """The plan of a file, if it is valid for this graph and job.

    Args:
        path: the file.
        spec: the graph's variables.
        layout: workers and servers of the job.
        config: the user's settings.
        synchronous: whether every step uses the gradients of all workers.

    Raises:
        PlanError: it is not valid.
    """
    plan = read_plan(path)
    plan.check_belongs_to(spec, layout)
    if plan.synchronous != synchronous:
        raise PlanError(
            f"{path}: the plan was made with sync={plan.synchronous}, but the job has sync={synchronous}. Make a new "
            "plan with `parallax plan --json`, or change the script."
        )
    if config.wire_dtype not in (None, plan.wire_dtype):
        raise PlanError(
            f"{path}: the plan was made with wire_dtype {plan.wire_dtype!r}, but the job asks for "
            f"{config.wire_dtype!r}. "
            "Make a new plan with `parallax plan --json`, or remove the setting."
        )
    if config.batches_per_update not in (1, plan.accumulate_steps):
        raise PlanError(
            f"{path}: the plan was made with accumulate_steps {plan.accumulate_steps}, but the job asks for "
            f"{config.batches_per_update}. Make a new plan with `parallax plan --json`, or remove the setting."
        )
    if config.staleness != plan.staleness:
        raise PlanError(
            f"{path}: the plan was made with staleness {plan.staleness}, but the job has {config.staleness}. Make a "
            "new plan with `parallax plan --json`, or change the setting."
        )
    if count_stages(config) not in (1, len(plan.stages)):
        raise PlanError(
            f"{path}: the plan was made with {len(plan.stages)} stages, but the job asks for {config.stages!r}. Make a "
            "new plan with `parallax plan --json`, or remove the setting."
        )
    if plan.islands is not None:
        raise PlanError(
            f"{path}: a plan of a file must be for workers that train together, and this one is for "
            f"{plan.islands.count} islands. Leave the file out, and set islands."
        )
    _check_possible(plan, spec, layout_of_replicas(layout, len(plan.stages) or 1, plan.is_by_stage), path)
    return _with_owner_rows(plan, spec)


def _check_possible(plan: Plan, spec: GraphSpec, layout: Layout, path: Path) -> None:
    """Refuses a plan that was edited into one that no planner would make for this graph."""
    routes = {v.name: v.route for v in plan.variables if v.route != NO_ROUTE}
    terms = PlanConstraints(
        plan.run_option,
        plan.synchronous,
        plan.average_sparse,
        routes,
        wire_dtype=plan.wire_dtype,
        accumulate_steps=plan.accumulate_steps,
        staleness=plan.staleness,
    )
    try:
        possible = make_plan(spec, layout, terms)
    except PlanError as error:
        raise PlanError(f"{path}: {error}") from error
    for variable in possible.variables:
        if tuple(map(len, variable.servers)) and (
            len(variable.servers) != len(plan.variable(variable.name).servers)
            or any(not 0 <= s < len(plan.servers) for part in plan.variable(variable.name).servers for s in part)
        ):
            raise PlanError(
                f"{path}: the plan must assign every partition to one of its {len(plan.servers)} servers, but "
                f"{variable.name!r} has {plan.variable(variable.name).servers}. Make a new plan with "
                "`parallax plan --json`."
            )
    for planned in plan.variables:
        _check_pattern(planned, layout.num_workers, path)
    without = {v.name for v in plan.variables if v.route == NO_ROUTE}
    for variable in possible.variables:
        if (variable.route == NO_ROUTE) != (variable.name in without):
            raise PlanError(
                f"{path}: the plan has no route for variable {variable.name!r}, which has a gradient. Make a new plan "
                "with `parallax plan --json`."
            )


def _check_pattern(planned: VariablePlan, workers: int, path: Path) -> None:
    pattern = planned.owner_pattern
    if pattern and planned.route != ALLTOALL:
        raise PlanError(
            f"{path}: only variables on route {ALLTOALL} have an owner_pattern, but {planned.name!r} takes route "
            f"{planned.route}. Set the pattern to [], or the route to {ALLTOALL}."
        )
    if odd := [entry for entry in pattern if type(entry) is not int or not 0 <= entry < workers]:
        raise PlanError(
            f"{path}: the owner_pattern of {planned.name!r} must name workers from 0 to {workers - 1}, got {odd[0]!r}. "
            "Correct it, or set it to [] for equal shares."
        )


def _with_owner_rows(plan: Plan, spec: GraphSpec) -> Plan:
    """The plan with the rows of each owner recomputed from the patterns, which are what a user edits."""
    variables = []
    for planned in plan.variables:
        if planned.owner_pattern:
            ownership = Ownership(planned.owner_pattern, plan.num_workers)
            planned = replace(planned, owner_rows=rows_by_owner(spec.variable(planned.name), ownership))
        variables.append(planned)
    return replace(plan, variables=tuple(variables))
