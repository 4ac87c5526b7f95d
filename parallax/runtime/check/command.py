"""`parallax check`: reports errors, suspicious constructs and useful notes about a script."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass

from parallax.analysis.graph_to_plan import AnalysedGraph
from parallax.analysis.reading.batches.batch_sources import BatchSource, batch_sources
from parallax.base.errors import ParallaxError
from parallax.base.types import Graph
from parallax.graph.view import GraphView
from parallax.plans.plan import Plan
from parallax.runtime.check.builds import SecondBuild, differing_values, structural_difference

_REFUSED, _SUSPICIOUS, _NOTE = "refused", "suspicious", "note"


@dataclass(frozen=True)
class FirstBuild:
    """This process's results at `parallel_run`.

    Attributes:
        graph: the user's.
        analysed: the same; None when it is refused.
        plan: of it; None when there is none.
        refusal: the error of a run before it starts; empty if it would start.
    """

    graph: Graph
    analysed: AnalysedGraph | None
    plan: Plan | None
    refusal: str


def report(first: FirstBuild, second: SecondBuild) -> int:
    """Prints the findings, and returns the exit status: 1 if a run would be refused, else 0."""
    findings = [(_REFUSED, first.refusal)] if first.refusal else []
    findings += _of_builds(first, second)
    if first.analysed is not None:
        findings += _of_graph(first.graph, first.analysed, first.plan)
    if first.analysed is not None and first.analysed.captured.means:
        note = first.analysed.captured.note_of_means
        findings.append((_NOTE, f"{note[0].upper()}{note[1:]}."))
    order = (_REFUSED, _SUSPICIOUS, _NOTE)
    width = max(map(len, order))
    for kind, text in sorted(findings, key=lambda pair: order.index(pair[0])):
        sys.stdout.write(f"{kind:{width}}  {text}\n")
    counts = [sum(kind == one for kind, _ in findings) for one in order]
    workers = f" by {first.plan.num_workers} workers" if first.plan is not None else ""
    verdict = f"A run{workers} would be refused" if counts[0] else f"A run{workers} would not be refused"
    sys.stdout.write(f"{verdict}; {counts[1]} suspicious, {counts[2]} to know. Nothing was started.\n")
    sys.stdout.flush()
    return 1 if counts[0] else 0


def _of_builds(first: FirstBuild, second: SecondBuild) -> list[tuple[str, str]]:
    """The differences between the two builds."""
    try:
        other = second.graph_def()
    except ParallaxError as error:
        return [(_REFUSED, str(error))]
    if text := structural_difference(first.graph, other):
        return [(_REFUSED, text)]
    values = differing_values(first.graph, other)
    return [(_NOTE, values)] if values else []


def _of_graph(graph: Graph, analysed: AnalysedGraph, plan: Plan | None) -> list[tuple[str, str]]:
    from parallax.analysis.reading.gradients import training_updates
    from parallax.runtime.check.suspicious import suspicions

    captured = analysed.captured
    suspicious = suspicions(captured, analysed.spec, analysed.sources)
    lines = [(_NOTE if one.is_note else _SUSPICIOUS, one.text) for one in suspicious]
    updates = training_updates(captured, analysed.sources)
    for op in graph.get_collection("train_op"):
        if op.name in captured.view.nodes and not captured.view.ancestors([op.name]) & updates:
            lines.append((_SUSPICIOUS, f"The train_op {op.name} updates no trained variable from its gradient."))
    if plan is not None and plan.stages and plan.num_replicas == 1:  # all workers take the same batches
        return lines
    return lines + find_unsharded_inputs(graph, captured.view, updates)


def find_unsharded_inputs(graph: Graph, view: GraphView, updates: Iterable[str]) -> list[tuple[str, str]]:
    """The findings about inputs of the step that do not depend on the index of the worker's shard.

    Args:
        graph: the user's.
        view: the same.
        updates: the ops that update variables from gradients.
    """
    return [_of_source(graph, one) for one in batch_sources(view, updates) if not one.is_sharded]


def _of_source(graph: Graph, source: BatchSource) -> tuple[str, str]:
    from parallax.runtime.worker.session.one_graph import place_of

    op = graph.get_operation_by_name(source.node)
    place = place_of(op)
    what = (
        f"The step trains on the output of {op.type} {source.node!r}{f' ({place})' if place else ''}, which is not "
        "sharded"
    )
    remedy = (
        "Shard the dataset before making its iterator: `dataset = parallax.shard.shard(dataset)`."
        if source.is_iterator
        else "Give each worker its own input with parallax.shard.create_num_shards_and_shard_id()."
    )
    if source.is_opaque:
        return _NOTE, f"{what} but fed or made in Python: it must be different on each worker. {remedy}"
    if source.is_shuffled:
        return _SUSPICIOUS, f"{what}: every worker trains on all of it, each in its own order. {remedy}"
    return _SUSPICIOUS, f"{what}: all workers train on the same batches. {remedy}"
