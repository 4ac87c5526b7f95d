"""A plan that a file gives: read, and compared with graph, job and settings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from parallax.analysis.cut.plan_stages import count_stages, layout_of_replicas
from parallax.analysis.planner import make_plan
from parallax.analysis.routes.candidates import rows_by_owner
from parallax.errors import PlanError
from parallax.graph.ownership import Ownership
from parallax.graph.spec import GraphSpec
from parallax.plans.plan import ALLTOALL, NO_ROUTE, Layout, Plan, PlanConstraints, VariablePlan, read_plan
from parallax.settings.config import Config


def plan_of_file(path: Path, spec: GraphSpec, layout: Layout, config: Config, synchronous: bool) -> Plan:
    """The plan of a file, if it can be one of this graph and job.

    Args:
        path: the file.
        spec: the graph's variables.
        layout: workers and servers of the job.
        config: what the user wants.
        synchronous: whether every step takes the gradients of all workers.

    Raises:
        PlanError: it cannot.
    """
    plan = read_plan(path)
    plan.check_belongs_to(spec, layout)
    if plan.synchronous != synchronous:
        raise PlanError(
            f"{path}: a plan file says whether every step takes the gradients of all workers: it was made with "
            f"sync={plan.synchronous}, and the job has sync={synchronous}. Make the plan anew, or change the script."
        )
    if config.wire_dtype not in (None, plan.wire_dtype):
        raise PlanError(
            f"{path}: a plan file says what travels as which type: wire_dtype is {plan.wire_dtype!r} there, and "
            f"{config.wire_dtype!r} was asked for. Make the plan anew, or leave the setting out."
        )
    if config.batches_per_update not in (1, plan.accumulate_steps):
        raise PlanError(
            f"{path}: a plan file says how many batches an update takes: accumulate_steps is {plan.accumulate_steps} "
            f"there, and {config.batches_per_update} was asked for. Make the plan anew, or leave the setting out."
        )
    if count_stages(config) not in (1, len(plan.stages)):
        raise PlanError(
            f"{path}: a plan file says where the model is cut: it has {len(plan.stages)} stages there, and "
            f"{config.stages!r} was asked for. Make the plan anew, or leave the setting out."
        )
    _check_possible(plan, spec, layout_of_replicas(layout, len(plan.stages) or 1), path)
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
                f"{path}: a plan must give every partition one of its {len(plan.servers)} servers, and "
                f"{variable.name} has {plan.variable(variable.name).servers}. Make it anew with `parallax plan --json`."
            )
    for planned in plan.variables:
        _check_pattern(planned, layout.num_workers, path)
    without = {v.name for v in plan.variables if v.route == NO_ROUTE}
    for variable in possible.variables:
        if (variable.route == NO_ROUTE) != (variable.name in without):
            raise PlanError(
                f"{path}: a plan must give a route to every variable with a gradient, and {variable.name} has none. "
                "Make it anew with `parallax plan --json`."
            )


def _check_pattern(planned: VariablePlan, workers: int, path: Path) -> None:
    pattern = planned.owner_pattern
    if pattern and planned.route != ALLTOALL:
        raise PlanError(
            f"{path}: only a variable by {ALLTOALL} has an owner_pattern, and {planned.name} goes by {planned.route}. "
            f"Make the pattern [], or the route {ALLTOALL}."
        )
    if odd := [entry for entry in pattern if type(entry) is not int or not 0 <= entry < workers]:
        raise PlanError(
            f"{path}: an owner_pattern must name workers from 0 to {workers - 1}, and that of {planned.name} has "
            f"{odd[0]!r}. Name others, or make the pattern [] for equal shares."
        )


def _with_owner_rows(plan: Plan, spec: GraphSpec) -> Plan:
    """The plan with the rows of each owner as the patterns say, which are what a user edits."""
    variables = []
    for planned in plan.variables:
        if planned.owner_pattern:
            ownership = Ownership(planned.owner_pattern, plan.num_workers)
            planned = replace(planned, owner_rows=rows_by_owner(spec.variable(planned.name), ownership))
        variables.append(planned)
    return replace(plan, variables=tuple(variables))
