"""From a graph to its plan and decisions: the one path that launcher, workers and command line share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parallax.analysis.capture import Captured, capture
from parallax.analysis.classify import classify
from parallax.analysis.planner import make_plan, part_routes
from parallax.analysis.propagate import propagate
from parallax.config import Config
from parallax.decisions import Decisions
from parallax.errors import GraphError, PlanError
from parallax.plan import NO_ROUTE, Plan, plan_from_json
from parallax.spec import GradientSource, GraphSpec


@dataclass(frozen=True, slots=True)
class Analysed:
    """A graph, read once."""

    captured: Captured
    spec: GraphSpec
    sources: tuple[GradientSource, ...]


def analyse(graph: Any) -> Analysed:
    """Captures and classifies a tf.Graph.

    Raises:
        GraphError: when it cannot be trained in parallel.
    """
    if not hasattr(graph, "as_graph_def"):
        raise GraphError(
            f"single_gpu_graph must be a tf.Graph, and {graph!r} was given. Build the model `with graph.as_default()`."
        )
    captured = capture(graph)
    spec, sources = classify(captured)
    return Analysed(captured, spec, sources)


def plan_for(analysed: Analysed, num_workers: int, config: Config) -> Plan:
    """The plan of a graph: the given file's, or a new one.

    Raises:
        PlanError: when the configuration asks for what is impossible, or the file does not belong to the graph.
    """
    if config.plan_file is None:
        return make_plan(analysed.spec, num_workers, config.routes, config.touched_rows)
    path = Path(config.plan_file)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise PlanError(
            f"{path}: a plan file must be readable: {error.strerror}. Write one with `parallax plan --json`."
        ) from error
    except UnicodeDecodeError as error:
        raise PlanError(
            f"{path}: a plan file must be UTF-8, and byte {error.start} is not. Write one with `parallax plan --json`."
        ) from error
    plan = plan_from_json(text, str(path))
    plan.check_belongs_to(analysed.spec, num_workers)
    _check_possible(plan, analysed.spec, path)
    return plan


def _check_possible(plan: Plan, spec: GraphSpec, path: Path) -> None:
    """Refuses a plan that was edited into one that no planner would make for this graph."""
    routes = {v.name: v.route for v in plan.variables if v.route != NO_ROUTE}
    try:
        possible = make_plan(spec, plan.num_workers, routes)
    except PlanError as error:
        raise PlanError(f"{path}: {error}") from error
    without = {v.name for v in plan.variables if v.route == NO_ROUTE}
    for variable in possible.variables:
        if (variable.route == NO_ROUTE) != (variable.name in without):
            raise PlanError(
                f"{path}: a plan must give a route to every variable with a gradient, and {variable.name} has none. "
                "Make it anew with `parallax plan --json`."
            )


def decide(analysed: Analysed, plan: Plan, equal_randomness: bool = False) -> Decisions:
    """What must be changed in the graph for a plan; for verification all workers draw the same random numbers."""
    return propagate(analysed.captured, analysed.sources, part_routes(analysed.spec, plan), equal_randomness)
