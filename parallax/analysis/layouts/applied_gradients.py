"""Makes gradients leave autodiff as sums over the workers, and all other inputs of their updates equal on workers."""

from __future__ import annotations

from parallax.analysis.layouts.rules.elementwise import ADDS
from parallax.analysis.layouts.rules.facts import COUNTED, REPLICATED, SUM
from parallax.analysis.layouts.rules.step_walk import REMEDY, StepWalk, is_partial
from parallax.analysis.layouts.training_graph import VisitedGraph, edges_outside
from parallax.analysis.reading.capture import variable_of_tensor
from parallax.base.errors import GraphError
from parallax.graph.ops import state_op
from parallax.graph.spec import GradientSource
from parallax.graph.view import Edge, GraphView, node_of
from parallax.plans.layouts import Concatenated, Distinct, Layout, Pieces, Sharded

_ADD_TO_VARIABLES = ("AssignAdd", "AssignAddVariableOp", "AssignSub", "AssignSubVariableOp")


def finish_step(program: VisitedGraph, step: StepWalk) -> None:
    """Makes gradients leave autodiff as sums over the workers, and all other inputs of their updates equal."""
    view = program.view
    exempt = set[Edge]()
    for source in program.sources:
        exempt.update(edges_outside(view, source))
        if source.indices is None:
            _finish_dense(step, source)
        else:
            _finish_rows(view, step, source, source.indices)
    nodes = sorted(filter(program.is_of_step, program.after_gradients))
    exempt.update(edge for node in nodes for edge in _count_once(program, step, node))
    for node in nodes:
        if view.op(node) == "IdentityN" and not any(map(view.consumers, view.outputs(node))):
            continue  # the name of a call, whose results are read separately
        for slot, tensor in enumerate(view.inputs(node)):
            fact = step.facts.get(tensor)
            if fact is not None and not fact.is_same and Edge(node, slot) not in exempt:
                step.require_layout(node, slot, REPLICATED)


def _count_once(program: VisitedGraph, step: StepWalk, node: str) -> list[Edge]:
    """Lets one worker alone add a value that all compute from gradients, such as their norm, to its part of a metric.

    Args:
        program: the graph.
        step: the traversal.
        node: any op after autodiff.

    Returns:
        The edges that read the worker's part of the metric.

    Raises:
        GraphError: a metric is written other than by adding to it.
    """
    view, variables = program.view, program.variables
    written = state_op(view.op(node), len(view.inputs(node)))
    slots = written.state if written is not None else ()
    metrics = [variable_of_tensor(view, variables, view.inputs(node)[slot]) for slot in slots]
    if step.part_variables.isdisjoint(metrics):
        return []
    if view.op(node) in _ADD_TO_VARIABLES:
        step.added_once[view.inputs(node)[1]].append(Edge(node, 1))
        return [Edge(node, slot) for slot in slots]
    added = node_of(view.source(view.inputs(node)[1]))
    inputs = view.inputs(added) if view.op(added) in ADDS else ()
    of_metric = [variable_of_tensor(view, variables, tensor) in metrics for tensor in inputs]
    if sorted(of_metric) != [False, True]:
        raise GraphError(
            f"{view.op(node)} {node!r} updates a metric from gradients other than by adding to it, which is not "
            f"supported. {REMEDY}"
        )
    other, metric = of_metric.index(False), of_metric.index(True)
    step.added_once[inputs[other]].append(Edge(added, other))
    return [Edge(added, metric)]


def _finish_dense(step: StepWalk, source: GradientSource) -> None:
    fact = step.facts[source.values]
    if fact.is_same or fact.is_sum:
        return
    for edge in step.view.consumers(source.values):
        if edge.node in source.outside:
            step.require_layout(edge.node, edge.slot, REPLICATED)


def find_pieces(view: GraphView, source: GradientSource) -> list[str]:
    """The rows and the row numbers of a sparse gradient, where both are concatenated from equally many pieces."""
    if source.indices is None:
        return []
    nodes = [node_of(tensor) for tensor in source.tensors]
    counts = [len(view.inputs(node)) if view.op(node) == "ConcatV2" else 0 for node in nodes]
    return [source.values, source.indices] if counts[0] == counts[1] > 0 else []


def find_pairs(view: GraphView, source: GradientSource) -> list[tuple[str, str]]:
    """The rows and the row numbers of a sparse gradient, or of its pieces."""
    if source.indices is None:
        return []
    pieces = find_pieces(view, source)
    if not pieces:
        return [(source.values, source.indices)]
    rows, numbers = (view.inputs(node_of(tensor))[:-1] for tensor in pieces)
    return list(zip(rows, numbers, strict=True))


def _finish_rows(view: GraphView, step: StepWalk, source: GradientSource, indices: str) -> None:
    """Makes each piece of a sparse gradient a part of a sum: rows sharded as their numbers are, or partial rows."""
    pairs = find_pairs(view, source)
    if pairs[0] != (source.values, indices):
        nodes = [node_of(tensor) for tensor in (source.values, indices)]
        for slot, pair in enumerate(pairs):
            _finish_piece(step, pair, ([Edge(nodes[0], slot)], [Edge(nodes[1], slot)]))
        return
    found = [
        [edge for edge in view.consumers(tensor) if edge.node in source.outside] for tensor in (source.values, indices)
    ]
    _finish_piece(step, pairs[0], (found[0], found[1]))


def _finish_by_piece(step: StepWalk, values: Layout, numbers: Layout, edges: list[Edge]) -> bool:
    """Whether the pieces of rows match those of their numbers: sharded as these are, or else partial rows."""
    if not isinstance(values, Concatenated) or not isinstance(numbers, Concatenated):
        return False
    if len(values.pieces) != len(numbers.pieces):
        return False
    pairs = zip(values.pieces, numbers.pieces, strict=True)
    for (length, rows), (other, by) in pairs:
        is_part = rows == by if isinstance(by, Sharded) else by == REPLICATED and rows in (SUM, COUNTED)
        if length != other or not is_part:
            return False
    counted = Concatenated(tuple((length, COUNTED if rows == SUM else rows) for length, rows in values.pieces))
    for edge in edges:
        step.require_layout(edge.node, edge.slot, counted)
    return True


def _finish_piece(step: StepWalk, pair: tuple[str, str], edges: tuple[list[Edge], list[Edge]]) -> None:
    rows, numbers = (step.facts[tensor] for tensor in pair)
    indices = pair[1]
    if isinstance(rows.layout, Pieces) and isinstance(numbers.layout, Pieces):
        return  # iterations of a loop have accumulated them: they were handled there
    values = [step.facts[step.view.inputs(edge.node)[edge.slot]].layout for edge in edges[0]]
    if any(isinstance(layout, Concatenated) for layout in (numbers.layout, *values)):
        if not all(_finish_by_piece(step, layout, numbers.layout, edges[0]) for layout in values):
            for edge in (*edges[0], *edges[1]):
                step.require_layout(edge.node, edge.slot, REPLICATED)
        return
    if isinstance(numbers.layout, Distinct) and rows.layout == Distinct(numbers.layout.of, is_sum=True):
        return  # summed by id where they are exchanged
    if numbers.axis == 0 and numbers.part is not None:
        required: Sharded | None = Sharded(0, numbers.part)
    elif numbers.is_same or numbers.is_lengths or is_partial(numbers) or isinstance(numbers.layout, Distinct):
        for edge in edges[1]:
            step.require_layout(edge.node, edge.slot, REPLICATED)
        required = None
    else:
        raise GraphError(f"Cannot determine which workers hold the row indices {indices!r} of a gradient. {REMEDY}")
    for edge in edges[0]:
        step.require_layout(edge.node, edge.slot, required or COUNTED)
