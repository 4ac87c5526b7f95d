"""Asks of every tensor how a worker holds it, and so decides what must be changed in the graph for given routes.

One walk in topological order over the user's graph; the rules for single ops are in rules.py, rules_rows.py and
rules_state.py. A newly found slot variable, or a variable found to be each worker's own, starts the walk again. The
result names nodes and edges only (decisions.py) and needs neither Horovod nor a cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from parallax.analysis import rules
from parallax.analysis.capture import Captured
from parallax.analysis.gradients import gradient_updates
from parallax.analysis.states import LOCAL, SAME, State
from parallax.decisions import AllReduce, Broadcast, Collect, Decisions, GatherRows, Lookup, Push, Scale, SliceRows
from parallax.decisions import Table, WholeShape
from parallax.errors import ParallaxError
from parallax.graph_view import Edge, GraphView
from parallax.spec import GradientSource


class NoRule(ParallaxError):
    """An op between a gradient and its update has no rule, so this part needs another route."""

    def __init__(self, part: str, reason: str) -> None:
        super().__init__(f"{part}: {reason}")
        self.part = part
        self.reason = reason


@dataclass
class Walk:
    """What one walk knows and has decided so far; the rules read and extend it.

    Attributes:
        captured: the graph.
        sources: where autodiff delivers gradients.
        routes: variable op -> route, for every part whose gradient comes as IndexedSlices.
        tables: table op -> table, for the parts routed by `alltoall`.
        table_of: variable op -> table op, slot variables included.
        own: variable ops that each worker keeps for itself.
        shared: variable ops that training writes: they must be equal on all workers.
        training: nodes that a gradient update needs.
        initial: nodes that an initial value needs.
    """

    captured: Captured
    sources: tuple[GradientSource, ...]
    routes: Mapping[str, str]
    tables: dict[str, Table]
    table_of: dict[str, str]
    own: set[str]
    shared: set[str]
    training: set[str]
    initial: set[str]
    initializers: set[str]
    dense_sources: dict[str, list[GradientSource]]
    states: dict[str, State] = field(default_factory=dict)
    depth: dict[str, int] = field(default_factory=dict)
    marked: dict[tuple[str, str], State] = field(default_factory=dict)
    pairs: dict[tuple[str, ...], tuple[str, ...]] = field(default_factory=dict)
    part_of_token: dict[str, str] = field(default_factory=dict)
    new_members: dict[str, str] = field(default_factory=dict)
    new_own: set[str] = field(default_factory=set)
    fed: set[str] = field(default_factory=set)
    scales: list[Scale] = field(default_factory=list)
    all_reduces: list[AllReduce] = field(default_factory=list)
    broadcasts: list[Broadcast] = field(default_factory=list)
    slices: dict[tuple[str, str], list[Edge]] = field(default_factory=dict)
    gathers: dict[str, tuple[str, list[Edge]]] = field(default_factory=dict)
    shapes: list[WholeShape] = field(default_factory=list)
    conditionals: list[str] = field(default_factory=list)
    lookups: list[Lookup] = field(default_factory=list)
    merges: dict[str, Merge] = field(default_factory=dict)

    @property
    def view(self) -> GraphView:
        """The index of the graph."""
        return self.captured.view

    def state_at(self, node: str, slot: int) -> State:
        """The state of input `slot` as this node takes it (outside autodiff a gradient is what the exchange makes it)."""
        tensor = self.view.inputs(node)[slot]
        return self.marked.get((tensor, node)) or self.states.get(tensor, LOCAL)

    def input_states(self, node: str) -> list[State]:
        """The states of all inputs as this node takes them."""
        return [self.state_at(node, slot) for slot in range(len(self.view.inputs(node)))]

    def value_state(self, variable: str) -> State:
        """The state of a variable's value."""
        if variable in self.table_of:
            return State("rows", (self.table_of[variable],))
        return LOCAL if variable in self.own else SAME

    def set_all(self, node: str, state: State) -> None:
        """Gives every output of a node one state."""
        for tensor in self.view.outputs(node):
            self.states[tensor] = state

    def slice_rows(self, table: str, edge: Edge) -> None:
        """The edge gets the local rows of what it takes."""
        tensor = self.view.inputs(edge.node)[edge.slot]
        self.slices.setdefault((tensor, table), []).append(edge)

    def gather_rows(self, tensor: str, table: str, *edges: Edge) -> None:
        """The edges, and whoever fetches the tensor, get all rows of it."""
        self.gathers.setdefault(tensor, (table, []))[1].extend(edges)

    def require_same(self, state: State) -> State:
        """What is fed becomes worker 0's value on all workers where shared state depends on it."""
        if state.kind == "fed":
            self.fed.update(state.key)
            return SAME
        return state


@dataclass
class Merge:
    """Where joined rows meet their update: the edges to be exchanged, and how the update treats equal rows."""

    part: str
    indices_token: tuple[str, ...]
    indices: list[Edge] = field(default_factory=list)
    values: list[Edge] = field(default_factory=list)
    merges_equal_rows: bool = True


def propagate(captured: Captured, sources: tuple[GradientSource, ...], routes: Mapping[str, str]) -> Decisions:
    """Decides what must change so that N workers train as one process would.

    Args:
        captured: the graph.
        sources: where autodiff delivers gradients (gradients.find_gradients).
        routes: variable op -> `alltoall`, `allgather`, `allreduce` or `raw`, for every part whose gradient comes as
            IndexedSlices; dense gradients are always all-reduced.

    Raises:
        NoRule: a part's route cannot be carried out; the message names the op.
        GraphError: no route can make this graph right.
    """
    tables = {part: _table(captured, part) for part, route in sorted(routes.items()) if route == "alltoall"}
    updates = gradient_updates(captured, sources)
    initializers = {v.initializer for v in captured.variables.values() if v.initializer}
    order = captured.view.topological_order()
    table_of, own = {part: part for part in tables}, set[str]()
    dense_sources: dict[str, list[GradientSource]] = {}
    for source in sources:
        if source.indices is None:
            dense_sources.setdefault(source.values, []).append(source)
    while True:
        walk = Walk(
            captured=captured,
            sources=sources,
            routes=routes,
            tables=tables,
            table_of=table_of,
            own=own,
            shared=rules.shared_variables(captured, sources, updates),
            training=captured.view.ancestors(updates - initializers),
            initial=captured.view.ancestors(initializers),
            initializers=initializers,
            dense_sources=dense_sources,
        )
        _mark(walk)
        for node in order:
            rules.visit(walk, node)
        if not walk.new_members.keys() - table_of.keys() and not walk.new_own - own:
            return _decisions(walk)
        table_of = {**table_of, **walk.new_members}
        own = own | walk.new_own


def _table(captured: Captured, part: str) -> Table:
    variable = captured.variables[part]
    rows, *row_shape = variable.part.shape
    return Table(part, rows, tuple(row_shape), variable.dtype, (part,), variable.logical_name)


def _mark(walk: Walk) -> None:
    """Says what a gradient is for those who take it out of autodiff."""
    for source in walk.sources:
        if source.indices is None:
            continue
        values, indices = State("values", (source.values,)), State("indices", (source.indices,))
        raw = walk.routes.get(source.part) == "raw"
        for tensor, state in ((source.values, values), (source.indices, indices)):
            edges = [e for e in walk.view.consumers(tensor) if e.node in source.outside]
            for edge in edges:
                walk.marked[(tensor, edge.node)] = SAME if raw else state
        walk.pairs[indices.key] = values.key
        walk.part_of_token[source.values] = walk.part_of_token[source.indices] = source.part
        edges = [e for e in walk.view.consumers(source.values) if e.node in source.outside]
        if edges and not any(s.tensor == source.values for s in walk.scales):
            walk.scales.append(Scale(source.values, tuple(edges)))
        if raw:
            index_edges = [e for e in walk.view.consumers(source.indices) if e.node in source.outside]
            walk.merges[f"raw {source.values}"] = Merge(source.part, indices.key, index_edges, edges)


def _decisions(walk: Walk) -> Decisions:
    for placeholder in sorted(walk.fed):
        edges = tuple(walk.view.consumers(f"{placeholder}:0"))
        walk.broadcasts.append(Broadcast(f"{placeholder}:0", edges))
    pushes, collects = [], []
    for merge in walk.merges.values():
        table = walk.table_of.get(merge.part)
        values, indices = tuple(merge.values), tuple(merge.indices)
        if table is not None:
            found = rules.lookups_of_indices(walk, merge)
            pushes.append(Push(table, values, indices, found, not merge.merges_equal_rows))
        else:
            variable = walk.captured.variables[merge.part]
            route = walk.routes[merge.part]
            again = not merge.merges_equal_rows
            collects.append(Collect(variable.logical_name, merge.part, variable.part.rows, route, values, indices, again))
    members = {t: tuple(sorted(m for m, of in walk.table_of.items() if of == t)) for t in walk.tables}
    tables = [Table(t.op, t.rows, t.row_shape, t.dtype, members[t.op], t.variable) for t in walk.tables.values()]
    rows = [t for t, s in walk.states.items() if s.kind in ("rows", "touched", "touched_indices", "map")]
    return Decisions(
        tables=tuple(tables),
        scales=tuple(walk.scales),
        all_reduces=tuple(walk.all_reduces),
        broadcasts=tuple(walk.broadcasts),
        slices=tuple(SliceRows(tensor, tuple(edges), table) for (tensor, table), edges in walk.slices.items()),
        gathers=tuple(GatherRows(tensor, tuple(edges), table) for tensor, (table, edges) in walk.gathers.items()),
        shapes=tuple(walk.shapes),
        conditionals=tuple(walk.conditionals),
        lookups=tuple(walk.lookups),
        pushes=tuple(pushes),
        collects=tuple(collects),
        held_by_row=tuple(sorted(t for t in rows if t not in walk.gathers)),
        initial_random_ops=tuple(sorted(n for n in walk.initial if rules.is_random(walk.view.op(n)))),
        local_variables=tuple(sorted(walk.own)),
    )
