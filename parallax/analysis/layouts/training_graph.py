"""A graph with marked batches, and the part of it that the traversal of a step visits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, fields

from parallax.analysis.reading.capture import CapturedVariable, variable_of_tensor
from parallax.analysis.reading.lowering.function_bodies import Functions
from parallax.graph.batches import (
    SparseFeed,
    are_elements,
    batch_of,
    elements_of_rows,
    find_report_kind,
    first_batches,
    length_by_step,
    marked_nodes,
    sparse_feeds,
)
from parallax.graph.ops import LOOKUPS, state_op
from parallax.graph.spec import GradientSource
from parallax.graph.view import Edge, GraphView, node_of

NO_ARRAYS = (20, 21)  # types.proto: resource, variant
_WITHOUT_NAN = (3, 4, 5, 6, 7, 9, 10, 17, 22, 23)  # types.proto: integers, string, bool


@dataclass(frozen=True, slots=True)
class TrainingGraph:
    """A graph whose batches are marked (graph/batches.py).

    Attributes:
        view: the graph.
        variables: by op.
        sources: where autodiff delivers gradients.
        initial: nodes on which initial values depend.
        functions: the variables that functions write, and their draws.
        differs: whether an op of a type may return other values on every worker from the same inputs.
        draws: whether an op of a type draws random numbers.
        steps: nodes on which steps depend, of a script's graph: a worker may run any others, such as an evaluation,
            alone on its own values; None where all nodes belong to steps.
        autodiff: nodes created by autodiff.
        replaced: nodes that autodiff created for a fixed batch that was opened.
    """

    view: GraphView
    variables: dict[str, CapturedVariable]
    sources: tuple[GradientSource, ...]
    initial: Set[str]
    functions: Functions
    differs: Callable[[str], bool]
    draws: Callable[[str], bool]
    steps: Set[str] | None = None
    autodiff: Set[str] = frozenset()
    replaced: Set[str] = frozenset()

    def is_of_step(self, node: str) -> bool:
        """Whether a node is one that all workers run together."""
        return self.steps is None or node in self.steps


@dataclass(frozen=True, slots=True)
class VisitedGraph(TrainingGraph):
    """The inputs of every traversal of a graph.

    Attributes:
        order: the nodes to visit.
        after_gradients: the nodes after the point where a gradient has left autodiff.
        batches: placeholder -> the placeholder whose first dimension is the per-worker batch.
        lengths: node that is the length of a global batch -> the placeholder of that batch.
        ends: placeholder of row splits -> the placeholder of their elements.
        sparse: placeholder -> the fed sparse tensor of which it is a part.
        compared: nodes whose values nothing depends on, as only comparisons with themselves read them.
    """

    order: tuple[str, ...] = ()
    after_gradients: Set[str] = frozenset()
    batches: Mapping[str, str] = field(default_factory=dict)
    lengths: Mapping[str, str] = field(default_factory=dict)
    ends: Mapping[str, str] = field(default_factory=dict)
    sparse: Mapping[str, SparseFeed] = field(default_factory=dict)
    compared: Set[str] = frozenset()

    @property
    def row_batches(self) -> Set[str]:
        """The batches with a row for each example."""
        return frozenset(self.lengths.values())

    def takers(self, tensor: str) -> list[Edge]:
        """The edges of a step that read a tensor."""
        return [edge for edge in self.view.consumers(tensor) if self.is_of_step(edge.node)]

    def is_opaque(self, node: str) -> bool:
        """Whether a node calls functions, or returns values that are not arrays, such as lists of tensors."""
        outputs = self.view.outputs(node)
        calls = bool(self.functions.of_node(self.view.nodes[node]))
        return calls or any(self.view.dtype(tensor) in NO_ARRAYS for tensor in outputs)

    @property
    def tables(self) -> Set[str]:
        """The variables of which an op looks up rows."""
        lookups = self.view.nodes_of(LOOKUPS)
        return {variable_of_tensor(self.view, self.variables, self.view.inputs(node)[0]) for node in lookups} - {""}

    def writes(self, node: str, part_variables: Set[str]) -> bool:
        """Whether functions that a node calls write variables, or may read those of which each worker has a part."""
        if not self.functions.of_node(self.view.nodes[node]):
            return False
        variables_read = [variable_of_tensor(self.view, self.variables, tensor) for tensor in self.view.inputs(node)]
        return bool(self.functions.written_slots(self.view.nodes[node])) or not part_variables.isdisjoint(
            variables_read
        )

    def differs_in(self, node: str) -> bool:
        """Whether a node, or a node of a function that it calls, may return other values on every worker."""
        called = self.functions.of_node(self.view.nodes[node])
        return any(map(self.functions.differing_op, called)) if called else self.differs(self.view.op(node))


def find_step(graph: TrainingGraph) -> VisitedGraph:
    """The nodes to visit: those that are connected to a batch, a written variable or a result, up to the gradients."""
    view, sources = graph.view, graph.sources
    first = first_batches(view)
    batches = {
        node: f"{node}:0" if are_elements(view.nodes[node]) else first[step]
        for node in marked_nodes(view)
        if (step := batch_of(view.nodes[node]))
    }
    lengths = {node: first[step] for step, node in length_by_step(view).items() if step in first}
    after = after_gradients(view, sources)
    stateful = [node for node in view.nodes if state_op(view.op(node), len(view.inputs(node)))]
    outside = graph.initial | (view.ancestors(batches) - batches.keys())  # the producers of batch elements
    reached = view.descendants((node for node in (*batches, *stateful) if node not in outside), after)
    delivered = [node_of(t) for s in sources for t in s.tensors]
    reached = {node for node in reached if node not in outside and graph.is_of_step(node)}
    reported = [node for node in marked_nodes(view) if find_report_kind(view.nodes[node]) and graph.is_of_step(node)]
    if graph.steps is None and (delivered or reported):  # a script may fetch any tensor; a front end says which
        without_outputs = (node for node in view.nodes if not view.outputs(node))
        reached &= view.ancestors({*stateful, *delivered, *reported, *after, *without_outputs})
    needed_nodes = _find_needed(view, [*delivered, *reached, *reported], batches, outside) - after
    order = tuple(node for node in view.topological_order() if node in needed_nodes and view.op(node) != "NoOp")
    fields_of_graph = {one.name: getattr(graph, one.name) for one in fields(graph)}
    sparse = {node: feed for node, feed in sparse_feeds(view).items() if node in batches}
    return VisitedGraph(
        **fields_of_graph,
        order=order,
        after_gradients=after,
        batches=batches,
        lengths=lengths,
        ends=elements_of_rows(view),
        sparse=sparse,
        compared=_find_compared(view, order, batches.keys() | {*stateful, *delivered, *reported}),
    )


def _find_compared(view: GraphView, order: Sequence[str], kept: Set[str]) -> set[str]:
    """Nodes, except some, whose values only comparisons of a scalar with itself read, as in `tf.recompute_grad`."""
    found: set[str] = set()
    for node in reversed(order):
        takers = [edge.node for tensor in view.outputs(node) for edge in view.consumers(tensor)]
        if takers and node not in kept and all(one in found or _is_always_true(view, one) for one in takers):
            found.add(node)
    return found


def _is_always_true(view: GraphView, node: str) -> bool:
    """Whether a node compares a scalar that cannot be NaN with itself."""
    inputs = [view.source(tensor) for tensor in view.inputs(node)]
    is_scalar = view.op(node) == "Equal" and view.shape(f"{node}:0") == ()
    return is_scalar and inputs[0] == inputs[1] and view.dtype(inputs[0]) in _WITHOUT_NAN


def _find_needed(view: GraphView, nodes: Sequence[str], batches: Mapping[str, str], outside: Set[str]) -> set[str]:
    """Some nodes and all their ancestors, except the producers of batch elements.

    Args:
        view: the graph.
        nodes: where to begin.
        batches: as in VisitedGraph.
        outside: such producers, and others for which a node may only wait.
    """
    needed_nodes, waiting = set(nodes), list(nodes)
    while waiting:
        node = waiting.pop()
        before = [*map(node_of, view.inputs(node)), *(one for one in view.controls(node) if one not in outside)]
        for needed in before if node not in batches else ():
            if needed not in needed_nodes:
                needed_nodes.add(needed)
                waiting.append(needed)
    return needed_nodes


def after_gradients(view: GraphView, sources: tuple[GradientSource, ...]) -> set[str]:
    """The nodes that read a gradient outside autodiff, and all nodes computed from them."""
    return view.descendants(edge.node for source in sources for edge in edges_outside(view, source))


def edges_outside(view: GraphView, source: GradientSource) -> list[Edge]:
    """The edges by which a gradient leaves autodiff."""
    return [edge for tensor in source.tensors for edge in view.consumers(tensor) if edge.node in source.outside]
