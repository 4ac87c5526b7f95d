"""Finds the layout of every tensor of a step, up to where gradients leave autodiff, and what must be changed for it.

One walk in topological order: each rule (op_rules.py) gives the layouts of an op from those of its inputs, and
says in which layout it takes an input. A partial tensor that some op needs whole is reduced once, where it is computed,
and every op takes it whole: the walk goes again with what it found of that kind, until it finds no more. From where a
gradient leaves autodiff to its update, rows of tables have states of their own (analysis/propagation).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace

from parallax.analysis.layouts.along import plain
from parallax.analysis.layouts.facts import COUNTED, REPLICATED, Fact
from parallax.analysis.layouts.op_rules import RULES
from parallax.analysis.layouts.step_walk import StepWalk, is_partial
from parallax.analysis.layouts.training_graph import TrainingGraph, VisitedGraph, find_step
from parallax.analysis.layouts.values import constant_value
from parallax.analysis.reading.capture import VARIABLES, variable_of_tensor
from parallax.errors import GraphError
from parallax.graph.batches import (
    ADDED,
    VALUE,
    are_elements,
    batch_by_node,
    batch_tensors,
    is_part,
    reported_as,
)
from parallax.graph.control_flow import MERGES, is_loop_merge
from parallax.graph.lengths import Length
from parallax.graph.ops import state_op
from parallax.graph.spec import GradientSource
from parallax.graph.view import Edge, GraphView, split_tensor
from parallax.plans.layouts import Change, Layout, LayoutRewrites, Pieces, Reported, Sharded, ShardedAxis

_MOST_WALKS = 30
_LOOPS = ("Enter", "RefEnter", "NextIteration", "RefNextIteration", "Exit", "LoopCond")
_REMEDY = "Set Config(layouts=False)."


@dataclass(frozen=True, slots=True)
class Layouts:
    """What was found of a graph.

    Attributes:
        facts: tensor -> what is known of it, of those that were visited.
        whole: (tensor, node) -> that node takes the tensor replicated, though it is computed otherwise.
        rewrites: what must be changed.
        alike: random ops that draw the same on all workers.
        mixing: node that mixes examples, or has no rule -> the sharded tensors that it takes whole.
    """

    facts: Mapping[str, Fact]
    whole: Set[tuple[str, str]]
    rewrites: LayoutRewrites
    alike: tuple[str, ...]
    mixing: Mapping[str, Sequence[str]]


def last_gradients(view: GraphView, sources: tuple[GradientSource, ...]) -> tuple[GradientSource, ...]:
    """The gradients that are applied; those that a loss is made of are tensors of the step as others are.

    Args:
        view: the graph.
        sources: where autodiff delivers gradients.
    """
    delivered = [split_tensor(t)[0] for s in sources for t in (s.values, s.indices) if t is not None]
    before = view.computed_of(delivered)
    found = []
    for source in sources:
        outside = tuple(node for node in source.outside if node not in before)
        if outside:
            found.append(replace(source, outside=outside))
    return tuple(found)


def find_layouts(graph: TrainingGraph) -> Layouts:
    """The layouts of a step's tensors.

    Raises:
        GraphError: an op cannot be carried out so that N workers compute what one process computes.
    """
    program, view, sources, variables = find_step(graph), graph.view, graph.sources, graph.variables
    pieces = frozenset(t for source in sources for t in _pieces(view, source))
    completed: dict[str, Layout] = {}
    for _ in range(_MOST_WALKS):
        step = StepWalk(view, program.batches, {v for v in variables if is_part(view.nodes[v])}, completed, pieces)
        for node in program.order:
            _visit(program, step, node)
        _finish(program, step)
        needed = [
            t for (t, to), edges in step.changes.items() if edges and to == REPLICATED and is_partial(step.facts[t])
        ]
        found = completed | {tensor: step.facts[tensor].layout for tensor in needed}
        if found == completed:
            return _layouts(program, step)
        completed = found
    raise GraphError(f"The layouts of this graph's tensors change with every walk over it. {_REMEDY}")


def _visit(program: VisitedGraph, step: StepWalk, node: str) -> None:
    """Gives the results of a node their layouts; a partial one that is needed whole is reduced here."""
    for tensor, fact in zip(program.view.outputs(node), _facts_of(program, step, node), strict=True):
        if tensor in step.completed and is_partial(fact):
            step.changes[tensor, REPLICATED] = program.takers(tensor)
            step.reduced[tensor] = fact.layout
            fact = Fact(REPLICATED, fact.dims)
        step.facts[tensor] = fact


def _facts_of(program: VisitedGraph, step: StepWalk, node: str) -> list[Fact]:
    view, op = program.view, program.view.op(node)
    if op == "Const":
        return step.all_outputs(node, REPLICATED, None, constant_value(view, f"{node}:0"))
    if op in VARIABLES:
        return step.all_outputs(node, REPLICATED)
    if node in program.lengths:
        return step.all_outputs(node, REPLICATED, (), Length.of(program.lengths[node]))
    if op.startswith("Placeholder") or node in program.batches:
        return _source(program, step, node)
    if op in ("ReadVariableOp",) and variable_of_tensor(view, program.variables, view.inputs(node)[0]):
        is_added_up = variable_of_tensor(view, program.variables, view.inputs(node)[0]) in step.part_variables
        return step.all_outputs(node, COUNTED if is_added_up else REPLICATED)
    if any(f"{tensor}" in step.pieces for tensor in view.outputs(node)):
        return step.all_outputs(node, Pieces())
    state = state_op(op, len(view.inputs(node)))
    if state is not None:
        return _write(program, step, node)
    if op in _LOOPS or (op in MERGES and is_loop_merge(view, node)):
        raise GraphError(f"Layouts have no rule for loops of the old style: {op} {node!r}. {_REMEDY}")
    missing = [t for t in view.inputs(node) if t not in step.facts]
    if missing:
        raise GraphError(f"Layouts cannot follow {op} {node!r}, which takes {missing[0]!r}. {_REMEDY}")
    if not view.outputs(node):
        return []  # an assertion, which looks at what its worker has
    is_opaque = op not in RULES and (program.differs_in(node) or program.is_opaque(node))
    found = None if is_opaque else RULES.get(op, plain)(step, node)
    return _whole(program, step, node) if found is None else found


def _source(program: VisitedGraph, step: StepWalk, node: str) -> list[Fact]:
    """A placeholder, or what else gives batches."""
    batch, view = program.batches.get(node), program.view
    if are_elements(view.nodes[node]):
        raise GraphError(f"Layouts have no rule for ragged batches: {node!r} has the values of one. {_REMEDY}")
    if batch is None:
        return step.all_outputs(node, REPLICATED)
    others = [tensor for tensor in view.outputs(node) if tensor not in batch_tensors(view, node)]
    if others:
        raise GraphError(
            f"Layouts need batches of open length, and {view.op(node)} {node!r} gives {others[0]!r} beside some, of "
            f"shape {view.shape(others[0])}. {_REMEDY}"
        )
    return step.all_outputs(node, Sharded(0, ShardedAxis(batch)))


def _whole(program: VisitedGraph, step: StepWalk, node: str) -> list[Fact]:
    """An op that mixes examples, or has no rule: it takes its inputs whole, and all workers compute the same."""
    view, op = program.view, program.view.op(node)
    called = program.functions.of_node(view.nodes[node])
    if program.functions.written_slots(view.nodes[node]):
        raise GraphError(f"Layouts have no rule for variables that functions write: {op} {node!r}. {_REMEDY}")
    if called or program.draws(op):
        step.alike += [node] if program.differs_in(node) else []
    elif program.differs(op):
        raise GraphError(
            f"N workers must compute what one process computes, and {op} {node!r} may give every worker something "
            f"else: layouts have no rule for it. {_REMEDY}"
        )
    step.gather(node)
    return step.all_outputs(node, REPLICATED)


def _write(program: VisitedGraph, step: StepWalk, node: str) -> list[Fact]:
    """Variables take what is the same on all workers; those that are added up over the workers take parts of a sum."""
    view = program.view
    state = state_op(view.op(node), len(view.inputs(node)))
    if state is None:
        return []
    handles = [variable_of_tensor(view, program.variables, view.inputs(node)[slot]) for slot in state.state]
    others = [slot for slot in range(len(view.inputs(node))) if slot not in state.state]
    if any(variable in step.part_variables for variable in handles):
        facts = step.inputs(node)
        by_row = state.indices is not None and facts[state.indices].part is not None
        if state.value is None or (by_row and facts[state.value].part != facts[state.indices or 0].part):
            raise GraphError(f"Layouts have no rule for how {view.op(node)} {node!r} adds to a metric. {_REMEDY}")
        if not by_row:
            step.take(node, state.value, COUNTED)
    else:
        step.replicate(node, *others) if others else None
    return step.all_outputs(node, REPLICATED)


def _finish(program: VisitedGraph, step: StepWalk) -> None:
    """Has gradients leave autodiff as sums over the workers, and everything else that their updates take be alike."""
    view = program.view
    delivered = set[Edge]()
    for source in program.sources:
        for tensor in (source.values, source.indices):
            edges = view.consumers(tensor) if tensor is not None else []
            delivered |= {edge for edge in edges if edge.node in source.outside}
        if source.indices is None:
            _finish_dense(step, source)
        else:
            _finish_rows(view, step, source, source.indices)
    for node in sorted(filter(program.is_of_step, program.after)):
        for slot, tensor in enumerate(view.inputs(node)):
            if tensor in step.facts and Edge(node, slot) not in delivered and not step.facts[tensor].is_same:
                step.take(node, slot, REPLICATED)
        written = state_op(view.op(node), len(view.inputs(node)))
        for slot in written.state if written is not None else ():
            if variable_of_tensor(view, program.variables, view.inputs(node)[slot]) in step.part_variables:
                raise GraphError(
                    f"Layouts have no rule for metrics of gradients: {view.op(node)} {node!r} adds one up. {_REMEDY}"
                )


def _finish_dense(step: StepWalk, source: GradientSource) -> None:
    fact = step.facts[source.values]
    if fact.is_same or fact.is_sum:
        return
    for edge in step.view.consumers(source.values):
        if edge.node in source.outside:
            step.take(edge.node, edge.slot, REPLICATED)


def _pieces(view: GraphView, source: GradientSource) -> list[str]:
    """The rows and the row numbers of a sparse gradient, where both are put together of as many pieces."""
    if source.indices is None:
        return []
    nodes = [split_tensor(tensor)[0] for tensor in (source.values, source.indices)]
    counts = [len(view.inputs(node)) if view.op(node) == "ConcatV2" else 0 for node in nodes]
    return [source.values, source.indices] if counts[0] == counts[1] > 0 else []


def _finish_rows(view: GraphView, step: StepWalk, source: GradientSource, indices: str) -> None:
    """Each piece of a sparse gradient is a part of a sum: rows sharded as their numbers are, or else partial rows."""
    if isinstance(step.facts[source.values].layout, Pieces):
        nodes = [split_tensor(tensor)[0] for tensor in (source.values, indices)]
        for slot in range(len(view.inputs(nodes[0])) - 1):
            edges = ([Edge(nodes[0], slot)], [Edge(nodes[1], slot)])
            _finish_piece(step, view.inputs(nodes[1])[slot], edges)
        return
    found = [
        [edge for edge in view.consumers(tensor) if edge.node in source.outside] for tensor in (source.values, indices)
    ]
    _finish_piece(step, indices, (found[0], found[1]))


def _finish_piece(step: StepWalk, indices: str, edges: tuple[list[Edge], list[Edge]]) -> None:
    numbers = step.facts[indices]
    if numbers.axis == 0 and numbers.part is not None:
        wanted: Sharded | None = Sharded(0, numbers.part)
    elif numbers.is_same or numbers.is_lengths or is_partial(numbers):
        for edge in edges[1]:
            step.take(edge.node, edge.slot, REPLICATED)
        wanted = None
    else:
        raise GraphError(f"Layouts cannot follow the row numbers {indices!r} of a gradient. {_REMEDY}")
    for edge in edges[0]:
        step.take(edge.node, edge.slot, wanted or COUNTED)


def _layouts(program: VisitedGraph, step: StepWalk) -> Layouts:
    place = {node: number for number, node in enumerate(program.order)}
    # What is reduced where it is computed comes first: its other takers take the whole tensor in their layouts.
    keys = sorted(
        step.changes, key=lambda key: (place[split_tensor(key[0])[0]], key[1] != REPLICATED, key[0], str(key[1]))
    )
    batches, changes = batch_by_node(program.view), []
    for tensor, layout in keys:
        if not step.changes[tensor, layout]:
            continue
        is_reduced = tensor in step.reduced and layout == REPLICATED
        before = step.reduced[tensor] if is_reduced else step.facts[tensor].layout
        edges = tuple(step.changes[tensor, layout])
        is_whole = is_reduced and program.steps is None
        changes.append(Change(tensor, before, layout, edges, is_whole, batches.get(split_tensor(tensor)[0], "")))
    sums: list[Reported] = []
    for node in program.order:
        tensor, kind = f"{node}:0", reported_as(program.view.nodes[node])
        fact, batch = step.facts.get(tensor), batches.get(node, "")
        if fact is None or kind not in (VALUE, ADDED) or fact.is_same:
            continue
        if kind == VALUE and fact.is_sum:
            sums.append(Reported(tensor, "" if fact.is_counted else batch))
        else:
            edges = tuple(program.view.consumers(tensor))
            changes.append(Change(tensor, fact.layout, REPLICATED, edges, True, batch))
    rewrites = LayoutRewrites(
        changes=tuple(changes),
        means=tuple(replace(one, edges=tuple(program.takers(f"{one.node}:0"))) for one in step.means),
        ranges=tuple(replace(one, edges=tuple(program.takers(f"{one.node}:0"))) for one in step.ranges),
        shapes=tuple(step.shapes),
        reported=tuple(sums),
        sharded={t: f.layout for t, f in step.facts.items() if isinstance(f.layout, Sharded)},
        lengths=frozenset(t for t, f in step.facts.items() if f.is_lengths),
    )
    whole = {(change.tensor, edge.node) for change in changes if change.after == REPLICATED for edge in change.edges}
    return Layouts(step.facts, whole, rewrites, tuple(step.alike), step.mixing)
