"""The variables that islands average, and the element types in which they do."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from parallax.analysis.graph_to_plan import AnalysedGraph
from parallax.base.errors import SessionError
from parallax.base.types import Graph
from parallax.graph.spec import VariableClass
from parallax.graph.view import node_of
from parallax.plans.plan import NO_ROUTE, Plan
from parallax.runtime.checkpoint.format.stored_tensors import CheckpointEntry, stored_variables
from parallax.runtime.guard.watched_variables import writers_of

_FLOATS = ("float16", "bfloat16", "float32", "float64")
_IN_HALF = ("float16", "bfloat16")


@dataclass(frozen=True, slots=True)
class AveragedVariables:
    """The variables that islands average, by op.

    Attributes:
        dense: with a gradient, of which each worker has all.
        tables: with a gradient, whose rows have owners in each island.
        state: without a gradient, such as moving averages.
    """

    dense: tuple[CheckpointEntry, ...]
    tables: tuple[CheckpointEntry, ...]
    state: tuple[CheckpointEntry, ...]


def find_averaged_variables(
    graph: Graph, analysed: AnalysedGraph, plan: Plan, with_owners: Container[str]
) -> AveragedVariables:
    """The variables that islands average; slots, counters and the counts of metrics stay those of each island.

    Args:
        graph: the user's graph.
        analysed: its variables and gradients.
        plan: of the job.
        with_owners: the ops of variables whose rows have owners.

    Raises:
        SessionError: one cannot be read, because the graph does not list it.
    """
    stored = {one.op: one for one in stored_variables(graph)}
    spec, view = analysed.spec, analysed.captured.view
    from_gradients = view.descendants({node_of(tensor) for one in analysed.sources for tensor in one.tensors})
    found: dict[str, list[CheckpointEntry]] = {"dense": [], "tables": [], "state": []}
    for variable in spec.variables:
        is_trained = plan.variable(variable.name).route != NO_ROUTE
        is_state = variable.cls is VariableClass.UNTRAINED and variable.dtype in _FLOATS
        for part in variable.parts:
            if is_trained and (part.op not in stored or stored[part.op].shape is None):
                raise SessionError(
                    f"Islands average the variables that tf.compat.v1.global_variables() lists, with known shapes, and "
                    f"{variable.name!r} is none of these. Add it to that collection, or leave islands out."
                )
            if is_trained:
                found["tables" if part.op in with_owners else "dense"].append(stored[part.op])
            elif is_state and part.op in stored and stored[part.op].shape is not None:
                if from_gradients.isdisjoint(writers_of(view, part.op)):  # else it is an optimizer's
                    found["state"].append(stored[part.op])
    return AveragedVariables(*(tuple(some) for some in found.values()))


def wire_type(one: CheckpointEntry) -> str:
    """The element type in which a variable is averaged: MPI has none of half precision."""
    return "float32" if one.dtype in _IN_HALF else one.dtype
