"""Finds results that a script may fetch alongside its steps and that depend on the global batch.

A result that depends on one worker's examples alone stays per-worker: a mean loss, an accuracy. A result that depends
on the global batch, such as a metric over the scores of all pairs or a sum divided by a global count, is analysed as
the step is. Partial sums among such results are all-reduced where they are fetched.
"""

from __future__ import annotations

from typing import NamedTuple

from parallax.analysis.layouts.rules.facts import REPLICATED, Fact
from parallax.analysis.layouts.rules.step_walk import StepWalk, is_partial
from parallax.analysis.layouts.training_graph import VisitedGraph
from parallax.analysis.reading.lowering.functional_control_flow import conditional_of
from parallax.graph.view import Edge
from parallax.plans.layouts import Partial, Sharded

_JOINS_SUMMARIES = "MergeSummary"
"""A worker joins its summaries alone: those of a queue, or of an evaluation's input, are its own."""


class FetchedResults(NamedTuple):
    """Results of a script's steps that depend on the global batch.

    Attributes:
        followed: nodes that no update needs.
        partial: partial tensors of the forward pass.
    """

    followed: list[str]
    partial: list[str]


def find_results(program: VisitedGraph, step: StepWalk) -> FetchedResults:
    """Finds the results that depend on the global batch.

    Args:
        program: a script's graph.
        step: a finished traversal of it.
    """
    view, facts, steps = program.view, step.facts, program.steps or frozenset()
    changed, of_all = _find_changed(program, step), set[str]()
    results = FetchedResults([], [])
    for node in view.topological_order():
        inputs, outputs = view.inputs(node), view.outputs(node)
        takes = not of_all.isdisjoint(inputs) or any(Edge(node, slot) in changed for slot in range(len(inputs)))
        takes = takes or node in step.mixing
        if not outputs or outputs[0] not in facts:
            is_joined = view.op(node) == _JOINS_SUMMARIES
            if takes and not is_joined and node not in steps and conditional_of(node) not in program.replaced:
                results.followed.append(node)
                of_all.update(outputs)
            continue
        for tensor in outputs:
            fact = facts[tensor]
            is_part = is_partial(fact)
            if (takes and (fact.is_same or is_part or fact.is_lengths)) or _has_all_examples(step, fact):
                of_all.add(tensor)
            is_forward = not {node, conditional_of(node)} & program.autodiff and node not in program.after_gradients
            if takes and (is_part or fact.is_lengths) and is_forward and not step.is_list(tensor):
                results.partial.append(tensor)
    return results


def _find_changed(program: VisitedGraph, step: StepWalk) -> set[Edge]:
    """The edges whose values depend on other workers, other than through gathered examples."""
    changed_edges = {edge for mean in step.means for edge in program.takers(f"{mean.node}:0")}
    for (tensor, after), edges in step.changes.items():
        before = step.facts[tensor]
        if (after == REPLICATED and not isinstance(before.layout, Sharded)) or isinstance(after, Partial):
            changed_edges.update(edges)
    return changed_edges


def _has_all_examples(step: StepWalk, fact: Fact) -> bool:
    """Whether a tensor has the examples of the global batch along an axis."""
    axes = enumerate(fact.dims or ())
    return not fact.is_lengths and any(step.has_batch(length) for axis, length in axes if axis != fact.axis)
