"""Finds the layout of every tensor of a step, up to where autodiff delivers gradients, and the layout changes.

The graph is traversed in topological order. Each rule (op_rules.py) maps the layouts of an op's inputs to those of its
results, and states the layout in which the op requires each input. A partial tensor that some op requires complete is
reduced once, where it is computed, and every consumer reads the reduced tensor. The traversal repeats with these
reductions until it finds no more. From the point where a gradient leaves autodiff to its update, rows of tables have
states instead of layouts (analysis/propagation).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace

from parallax.analysis.layouts.applied_gradients import find_pairs, find_pieces, finish_step
from parallax.analysis.layouts.results import FetchedResults, find_results
from parallax.analysis.layouts.rules.facts import COUNTED, LENGTHS, REPLICATED, Fact
from parallax.analysis.layouts.rules.ragged import check_fed_ends
from parallax.analysis.layouts.rules.slicing import count_ends
from parallax.analysis.layouts.rules.sparse_tensors import find_counted_lengths
from parallax.analysis.layouts.rules.step_walk import REMEDY, StepWalk, is_partial
from parallax.analysis.layouts.training_graph import (
    TrainingGraph,
    VisitedGraph,
    after_gradients,
    find_step,
)
from parallax.analysis.layouts.visit_step import visit_all
from parallax.analysis.layouts.width_reads import find_width_reads
from parallax.base.errors import GraphError
from parallax.graph.batches import ADDED, ROWS, VALUE, WHOLE, batch_by_node, find_report_kind, is_partial_sum
from parallax.graph.control_flow import branches_of, units_of
from parallax.graph.grown_rows import find_grown_rows
from parallax.graph.lengths import Length
from parallax.graph.spec import GradientSource
from parallax.graph.view import Edge, GraphView, node_of
from parallax.plans.layouts import (
    Change,
    Concatenated,
    FedLength,
    Layout,
    LayoutRewrites,
    ReportedSum,
    RowEnds,
    Sharded,
)
from parallax.plans.uneven_batches import PaddedRows

_MAX_TRAVERSALS = 30
_INTEGER_TYPES = (3, 9)  # types.proto: int32, int64
_JUMPS = """
    Ceil Equal Floor FloorDiv FloorMod Greater GreaterEqual Less LessEqual Mod NotEqual Rint Round Sign TruncateDiv
    """.split()
"""Ops whose results jump where an input changes in its last bit."""
_LEAVES = ("Exit", "RefExit", "IdentityN")
_SCALES = ("Cast", "Div", "Identity", "Mul", "Neg", "RealDiv")


@dataclass(frozen=True, slots=True)
class Layouts:
    """The results for a graph.

    Attributes:
        facts: tensor -> its facts, for tensors that were visited.
        replicated_reads: (tensor, node) -> the node reads the tensor replicated, though it is computed otherwise.
        rewrites: the changes of the graph.
        equal_draws: random ops with equal draws on all workers.
        mixing: node that mixes examples, or has no rule -> the sharded tensors that it reads gathered.
        padded: ragged rows that are padded to the longest of all workers'.
        added_once: edges that add values of applied gradients to metrics, for one worker alone: the values must be
            equal on all.
    """

    facts: Mapping[str, Fact]
    replicated_reads: Set[tuple[str, str]]
    rewrites: LayoutRewrites
    equal_draws: tuple[str, ...]
    mixing: Mapping[str, Sequence[str]]
    padded: tuple[PaddedRows, ...] = ()
    added_once: Set[Edge] = frozenset()

    def leaves_counted(self, gradient: str) -> bool:
        """Whether a worker without examples has no part of a dense gradient, or a replicated one."""
        fact = self.facts[gradient]
        return fact.is_counted or fact.is_same


def find_applied_gradients(view: GraphView, sources: tuple[GradientSource, ...]) -> tuple[GradientSource, ...]:
    """The gradients that are applied; gradients that a loss is computed from are ordinary tensors of the step.

    Args:
        view: the graph.
        sources: where autodiff delivers gradients.
    """
    delivered = [node_of(t) for s in sources for t in s.tensors]
    before, last = view.computed_of(delivered), []
    for source in sources:
        outside = tuple(node for node in source.outside if node not in before)
        if outside:
            last.append(replace(source, outside=outside))
    return tuple(last)


def replicate_all(graph: TrainingGraph) -> Layouts:
    """The layouts of a worker that takes steps of its own: every tensor is that of one process on its batch."""
    view, after = graph.view, after_gradients(graph.view, graph.sources)
    visited = [n for n in view.nodes if n not in after and n not in graph.initial and graph.is_of_step(n)]
    facts = {tensor: Fact(REPLICATED) for node in visited for tensor in view.outputs(node)}
    return Layouts(facts, frozenset(), LayoutRewrites(), (), {})


def find_layouts(graph: TrainingGraph) -> Layouts:
    """The layouts of a step's tensors.

    Raises:
        GraphError: an op cannot be executed so that N workers compute what one process computes.
    """
    program = find_step(graph)
    layouts, results = _find_layouts(program)
    while results.followed:
        graph = replace(graph, steps=(graph.steps or set()) | (graph.view.ancestors(results.followed) - graph.initial))
        program = find_step(graph)
        try:
            layouts, results = _find_layouts(program)
        except GraphError as error:  # a script that does not fetch these can still train
            refused = dict.fromkeys(results.followed, str(error))
            return replace(layouts, rewrites=replace(layouts.rewrites, refused=refused))
    return layouts


def _find_layouts(program: VisitedGraph) -> tuple[Layouts, FetchedResults]:
    """The layouts of a step, and the results of a script's steps that depend on the global batch."""
    view, sources, variables = program.view, program.sources, program.variables
    if program.steps is not None:
        check_fed_ends(view, program.batches.keys() - program.ends.keys())
    pieces = frozenset(t for source in sources for t in find_pieces(view, source))
    grown = find_grown_rows(view, (pair for source in sources for pair in find_pairs(view, source)))
    completed: dict[str, Layout] = {}
    gathered: set[str] = set()
    adjacent: set[str] = set()
    fed_lengths: dict[str, str] = {}
    fed_numbers = _find_fed_scalars(program) if program.steps is not None else frozenset[str]()
    parts = {v for v in variables if is_partial_sum(view.nodes[v])}
    units = units_of(view, program.order)
    for _ in range(_MAX_TRAVERSALS):
        step = StepWalk(
            view, program.batches, parts, completed, pieces, grown, gathered=set(gathered), adjacent=set(adjacent)
        )
        step.fed_scalars, step.fed_lengths = fed_numbers, dict(fed_lengths)
        step.is_script = program.steps is not None
        visit_all(program, step, units)
        finish_step(program, step)
        needed = [
            _find_sum_to_reduce(step, t, edges)
            for (t, to), edges in step.changes.items()
            if edges and to == REPLICATED and is_partial(step.facts[t])
        ]
        needed += sorted(step.incomplete & step.facts.keys())
        step.gathered |= find_counted_lengths(step)
        found = completed | {tensor: step.facts[tensor].layout for tensor in needed}
        if (step.adjacent, step.fed_lengths) != (adjacent, fed_lengths):  # their facts were used
            completed, gathered, adjacent, fed_lengths = {}, set(), step.adjacent, step.fed_lengths
            continue
        if found == completed and step.gathered == gathered:
            if program.steps is not None:  # the script has made its constants for a per-worker batch
                _check_lengths(step)
            results = FetchedResults([], []) if program.steps is None else find_results(program, step)
            return _make_layouts(program, step, results.partial), results
        completed, gathered = found, step.gathered
    raise GraphError(f"Cannot determine which tensors of this graph are sharded over the workers. {REMEDY}")


def _find_sum_to_reduce(step: StepWalk, tensor: str, edges: Sequence[Edge]) -> str:
    """The partial sum to reduce where readers need a tensor replicated: the tensor, or that of which it is a multiple.

    Scaled parts do not add up to the scaled sum in the last bit, by which an integer may differ.
    """
    view = step.view
    while any(view.op(edge.node) in _JUMPS or _is_truncated(view, edge.node) for edge in edges):
        node = node_of(tensor)
        partial = [one for one in view.inputs(node) if is_partial(step.facts[one])] if view.op(node) in _SCALES else []
        if len(partial) != 1 or not all(step.facts[one].is_same or one in partial for one in view.inputs(node)):
            break
        (tensor,) = partial
    return tensor


def _is_truncated(view: GraphView, node: str) -> bool:
    return view.op(node) == "Cast" and view.dtype(f"{node}:0") in _INTEGER_TYPES


def _find_fed_scalars(program: VisitedGraph) -> frozenset[str]:
    """The placeholders of integers in a script, which may be lengths."""
    view = program.view
    return frozenset(
        node
        for node in program.order
        if view.op(node) in ("Placeholder", "PlaceholderWithDefault")
        and node not in program.batches
        and view.dtype(f"{node}:0") in _INTEGER_TYPES
        and (view.shape(f"{node}:0") == () or _is_packed(view, f"{node}:0"))
    )


def _is_packed(view: GraphView, tensor: str) -> bool:
    """Whether a tensor of open shape is a scalar, like those with which it is packed into a vector."""
    packs = [edge.node for edge in view.consumers(tensor) if view.op(edge.node) == "Pack"]
    return view.shape(tensor) is None and any(view.shape(one) == () for node in packs for one in view.inputs(node))


def _check_lengths(step: StepWalk) -> None:
    """Refuses an axis of fixed length along the examples of an open batch."""
    for (tensor, layout), edges in step.changes.items():
        fixed = _find_fixed_length(step.facts[tensor], layout)
        if edges and fixed is not None:
            raise GraphError(
                f"{tensor!r} has the fixed length {fixed} along a batch of open length, with which {edges[0].node!r} "
                f"combines it. Take the length from the batch with tf.shape. {REMEDY}"
            )


def _find_fixed_length(fact: Fact, layout: Layout) -> int | None:
    if not fact.is_same or not isinstance(layout, Sharded) or fact.dims is None:
        return None
    number = fact.dims[layout.axis].number
    return None if number == 1 else number


def _find_loop_lengths(program: VisitedGraph, step: StepWalk, tensor: str) -> Length | tuple[Length, ...] | None:
    """Lengths that a loop computes, or passes between iterations; None where they do not follow from batches."""
    fact, node = step.facts[tensor], node_of(tensor)
    is_of_loop = program.view.op(node) in _LEAVES or any(one.is_loop for one in branches_of(program.view)[node])
    if not fact.is_lengths or not is_of_loop or not step.is_of_batches(fact):
        return None
    value = fact.value
    return tuple(one for one in value if one is not None) if isinstance(value, tuple) else value


def _separate_ends(step: StepWalk, change: Change) -> list[Change]:
    """A gather, and apart from it those for slices that read entries at an end alone."""
    before, edges_by_ends = change.before, dict[int, list[Edge]]()
    if change.is_whole or change.after != REPLICATED or not isinstance(before, Sharded) or before.part.blocks > 1:
        return [change]
    for edge in change.edges:
        edges_by_ends.setdefault(count_ends(step, edge, before.axis), []).append(edge)
    return [replace(change, edges=tuple(edges), ends=ends) for ends, edges in sorted(edges_by_ends.items())]


def _make_layouts(program: VisitedGraph, step: StepWalk, partial_results: Sequence[str]) -> Layouts:
    place = {node: number for number, node in enumerate(program.order)}
    # Tensors reduced where they are computed come first: their other readers read the reduced tensor in their layouts.
    keys = sorted(step.changes, key=lambda key: (place[node_of(key[0])], key[1] != REPLICATED, key[0], str(key[1])))
    batches, changes = batch_by_node(program.view), []
    for tensor, layout in keys:
        if not step.changes[tensor, layout]:
            continue
        is_reduced = tensor in step.reduced and layout == REPLICATED
        before = step.reduced[tensor] if is_reduced else step.facts[tensor].layout
        edges = tuple(step.changes[tensor, layout])
        is_whole = is_reduced and program.steps is None
        change = Change(tensor, before, layout, edges, is_whole, batches.get(node_of(tensor), ""))
        changes += _separate_ends(step, change)
    changes += [Change(tensor, REPLICATED, COUNTED, tuple(edges)) for tensor, edges in step.added_once.items()]
    for tensor in partial_results:
        batch = batches.get(node_of(tensor), "")
        changes.append(Change(tensor, step.facts[tensor].layout, REPLICATED, (), True, batch))
    sums: list[ReportedSum] = []
    whole_results: list[str] = []
    for node in program.order:
        tensor, kind = f"{node}:0", find_report_kind(program.view.nodes[node])
        fact, batch = step.facts.get(tensor), batches.get(node, "")
        if fact is not None and kind in (ROWS, WHOLE) and fact.layout == REPLICATED:
            whole_results.append(tensor)
        if fact is None or kind not in (VALUE, ADDED) or fact.is_same:
            continue
        if kind == VALUE and fact.is_sum:
            sums.append(ReportedSum(tensor, "" if fact.is_counted else batch))
        else:
            edges = tuple(program.view.consumers(tensor))
            changes.append(Change(tensor, fact.layout, REPLICATED, edges, True, batch))
    rewrites = LayoutRewrites(
        changes=tuple(changes),
        means=tuple(replace(one, edges=tuple(program.takers(f"{one.node}:0"))) for one in step.means),
        ranges=tuple(replace(one, edges=tuple(program.takers(f"{one.node}:{one.output}"))) for one in step.ranges),
        filled=tuple(replace(one, edges=tuple(program.takers(f"{one.node}:0"))) for one in step.filled),
        shapes=tuple(step.shapes),
        reported=tuple(sums),
        global_results=tuple(whole_results),
        sharded={t: f.layout for t, f in step.facts.items() if isinstance(f.layout, Sharded)},
        ends={t: f.layout for t, f in step.facts.items() if isinstance(f.layout, RowEnds)},
        concatenated={t: f.layout for t, f in step.facts.items() if isinstance(f.layout, Concatenated)},
        lengths=tuple(
            tensor for tensor, fact in step.facts.items() if fact.is_lengths or step.reduced.get(tensor) == LENGTHS
        ),
        known_lengths={
            tensor: value for tensor in step.facts if (value := _find_loop_lengths(program, step, tensor)) is not None
        },
        fed=tuple(
            FedLength(f"{node}:0", batch, tuple(program.takers(f"{node}:0")))
            for node, batch in step.fed_lengths.items()
        ),
        from_worker_0=tuple(step.from_worker_0),
        squeezed=dict(step.squeezed),
        width_reads=find_width_reads(step, program.order),
    )
    whole = {(change.tensor, edge.node) for change in changes if change.after == REPLICATED for edge in change.edges}
    padded = tuple(map(PaddedRows, step.padded))
    equal_draws = tuple(step.equal_draws)
    added = frozenset(edge for edges in step.added_once.values() for edge in edges)
    return Layouts(step.facts, whole, rewrites, equal_draws, step.mixing, padded, added)
