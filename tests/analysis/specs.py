"""Variables written down by hand, for tests of the planner; no TensorFlow."""

from __future__ import annotations

from typing import Any

from parallax.analysis import planner
from parallax.graph.spec import GradientSource, GraphSpec, Part, VariableClass, VariableSpec
from parallax.plans.plan import Plan, PlanConstraints, one_host


def dense(name: str = "w", shape: tuple[int, ...] = (10, 4)) -> VariableSpec:
    gradient = GradientSource(name, "grad:0", None, ("update",), "recorded")
    return VariableSpec(
        name, shape, "float32", 4, (Part(name, shape),), True, VariableClass.DENSE, gradients=(gradient,)
    )


def sparse(name: str = "emb", shape: tuple[int, ...] = (1000, 8), ids: int | None = 50) -> VariableSpec:
    gradient = GradientSource(name, "values:0", "indices:0", ("update",), "recorded")
    return VariableSpec(
        name,
        shape,
        "float32",
        4,
        (Part(name, shape),),
        True,
        VariableClass.SPARSE,
        gradients=(gradient,),
        ids_per_step=ids,
    )


def spec(*variables: VariableSpec) -> GraphSpec:
    return GraphSpec("f" * 64, tuple(variables), model_key="f" * 64)


def make_plan(of: GraphSpec, workers: int, servers: int = 1, **constraints: Any) -> Plan:
    """The plan for workers and servers of one host."""
    return planner.make_plan(of, one_host(workers, servers), PlanConstraints(**constraints))
