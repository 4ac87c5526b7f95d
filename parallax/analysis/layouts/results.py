"""Results of a script's steps: what it may fetch, that no update needs, or that is a part of a sum over the workers.

A worker's own batch gives what is computed of its examples alone. What a step computes of the global batch, as a count
of it or a matrix of scores of all pairs, is the one process's: what the script computes of that is followed as the step
is, and a part of a reduction that has such in it is completed where it is fetched.
"""

from __future__ import annotations

from typing import NamedTuple

from parallax.analysis.layouts.facts import REPLICATED, Fact
from parallax.analysis.layouts.step_walk import StepWalk, is_partial
from parallax.analysis.layouts.training_graph import VisitedGraph
from parallax.analysis.reading.lowering.functional_control_flow import conditional_of
from parallax.graph.view import Edge
from parallax.plans.layouts import Partial, Sharded


class FetchedResults(NamedTuple):
    """Of a walk over a script's steps.

    Attributes:
        followed: nodes that no update needs, and that take something of the global batch.
        partial: tensors of the forward pass that are parts of reductions, and have something of the global batch.
    """

    followed: list[str]
    partial: list[str]


def find_results(program: VisitedGraph, step: StepWalk) -> FetchedResults:
    """What takes, or is, something of the global batch.

    Args:
        program: a script's graph.
        step: a walk over it that has ended.
    """
    view, facts, steps = program.view, step.facts, program.steps or frozenset()
    changed, of_all = _find_changed(program, step), set[str]()
    results = FetchedResults([], [])
    for node in view.topological_order():
        inputs, outputs = view.inputs(node), view.outputs(node)
        takes = not of_all.isdisjoint(inputs) or any(Edge(node, slot) in changed for slot in range(len(inputs)))
        if not outputs or outputs[0] not in facts:
            if takes and node not in steps and conditional_of(node) not in program.replaced:
                results.followed.append(node)
                of_all.update(outputs)
            continue
        for tensor in outputs:
            fact = facts[tensor]
            is_part = is_partial(fact)
            if (takes and (fact.is_same or is_part)) or _has_all_examples(step, fact):
                of_all.add(tensor)
            is_forward = node not in program.autodiff and node not in program.after
            if takes and is_part and is_forward and not step.is_list(tensor):
                results.partial.append(tensor)
    return results


def _find_changed(program: VisitedGraph, step: StepWalk) -> set[Edge]:
    """The edges by which something is taken that a worker has not by itself, examples apart."""
    found = {edge for mean in step.means for edge in program.takers(f"{mean.node}:0")}
    for (tensor, after), edges in step.changes.items():
        before = step.facts[tensor]
        if (after == REPLICATED and not isinstance(before.layout, Sharded)) or isinstance(after, Partial):
            found.update(edges)
    return found


def _has_all_examples(step: StepWalk, fact: Fact) -> bool:
    """Whether an axis of a tensor is the examples of all workers."""
    axes = enumerate(fact.dims or ())
    return not fact.is_lengths and any(step.has_batch(length) for axis, length in axes if axis != fact.axis)
