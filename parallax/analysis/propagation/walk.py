"""The working state of one traversal of a graph, which the rules read and extend (propagate.py drives it)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from parallax.analysis.propagation.states import (
    LOCAL,
    SAME,
    AtOwners,
    Extent,
    FedScalars,
    Handle,
    Indices,
    Rows,
    State,
    Values,
    find_worst_state,
)
from parallax.analysis.reading.capture import CapturedGraph
from parallax.analysis.reading.lowering.function_bodies import Functions
from parallax.base.errors import ParallaxError
from parallax.graph.control_flow import SWITCHES, Branches, loop_conditions
from parallax.graph.spec import GradientSource
from parallax.graph.view import Edge, GraphView
from parallax.plans.gradient_rows import EqualRows, GradientPiece, SharedRows
from parallax.plans.rewrites import AllReduce, Broadcast, CountRows, Lookup, Scale, Scatter, Table, WholeShape

if TYPE_CHECKING:
    from parallax.analysis.layouts.find_layouts import Layouts


class NoRule(ParallaxError):
    """An op between a gradient and its update has no rule, so this part needs another route."""

    def __init__(self, part: str, reason: str) -> None:
        super().__init__(f"{part}: {reason}")
        self.part = part
        self.reason = reason


@dataclass
class Merge:
    """The point where gradient rows reach their update: the edges to exchange, and how the update treats equal rows."""

    part: str
    indices_token: tuple[str, ...]
    indices: list[Edge] = field(default_factory=list)
    values: list[Edge] = field(default_factory=list)
    merges_equal_rows: bool = True
    pieces: tuple[GradientPiece, ...] = ()


@dataclass(frozen=True, slots=True)
class GraphFacts:
    """The inputs of every traversal of a graph.

    Attributes:
        captured: the graph.
        sources: where autodiff delivers gradients, outside of loops.
        routes: variable op -> route, for every part whose gradient comes as IndexedSlices.
        tables: table op -> table, for the parts whose rows have owners.
        shared: variable ops that training writes: they must be equal on all workers.
        training: nodes on which a gradient update depends.
        read: those of them on which it depends by data; not those connected by control inputs alone.
        initial: nodes on which an initial value depends.
        initializers: the ops that assign initial values.
        dense_sources: dense gradients, by tensor.
        equal_randomness: whether all workers draw the same random numbers.
        after_gradients: nodes of training on which no gradient depends: one process draws there once for all.
        branches: node -> the conditionals and loops that contain it.
        functions: the variables that functions write, and their draws.
        layouts: the layouts of a step's tensors; where there are none, each worker's loss is taken to be a mean over
            its batch.
    """

    captured: CapturedGraph
    sources: tuple[GradientSource, ...]
    routes: Mapping[str, str]
    tables: Mapping[str, Table]
    shared: Set[str]
    training: Set[str]
    read: Set[str]
    initial: Set[str]
    initializers: Set[str]
    dense_sources: Mapping[str, Sequence[GradientSource]]
    equal_randomness: bool
    after_gradients: Set[str]
    branches: Mapping[str, Branches]
    functions: Functions
    layouts: Layouts | None = None


@dataclass(frozen=True, slots=True)
class Assumptions:
    """The assumptions of a traversal, found by the preceding one; the last traversal confirms its own.

    Attributes:
        table_of: variable op -> table op, including slot variables.
        local_variables: per-worker variable ops.
        kinds: the pieces of sparse gradients; all are joined where nothing is known.
    """

    table_of: Mapping[str, str]
    local_variables: Set[str] = frozenset()
    kinds: Mapping[str, tuple[GradientPiece, ...]] = field(default_factory=dict)


@dataclass
class Walk:
    """One traversal: its inputs, its assumptions, and its results so far; the rules read and extend it.

    Attributes:
        facts: the inputs of every traversal of this graph.
        assumptions: the results of the preceding traversal.
        states: tensor -> its state.
        marked: (tensor, node) -> the state in which that node reads it, where that differs from the others.
        pairs: row numbers of gradient rows -> the rows they belong to.
        part_of_token: the tensor of rows or row numbers that autodiff delivers -> the variable op.
        new_members: variable op -> table op, for the slots that were found.
        confirmed: variables that were assumed to be slots, and are.
        new_local_variables: variables that turned out to be per-worker.
        fed: placeholders of which worker 0's value is used.
        scales: and all that follows: changes of the graph (parallax/plans/rewrites.py).
    """

    facts: GraphFacts
    assumptions: Assumptions
    states: dict[str, State] = field(default_factory=dict)
    marked: dict[tuple[str, str], State] = field(default_factory=dict)
    pairs: dict[str, list[str]] = field(default_factory=dict)
    part_of_token: dict[str, str] = field(default_factory=dict)
    new_members: dict[str, str] = field(default_factory=dict)
    confirmed: set[str] = field(default_factory=set)
    new_local_variables: set[str] = field(default_factory=set)
    fed: set[str] = field(default_factory=set)
    scales: list[Scale] = field(default_factory=list)
    scatters: list[Scatter] = field(default_factory=list)
    shared_rows: list[SharedRows] = field(default_factory=list)
    all_reduces: list[AllReduce] = field(default_factory=list)
    broadcasts: list[Broadcast] = field(default_factory=list)
    slices: dict[tuple[str, str], list[Edge]] = field(default_factory=dict)
    gathers: dict[str, tuple[str, list[Edge]]] = field(default_factory=dict)
    shapes: list[WholeShape] = field(default_factory=list)
    counts: list[CountRows] = field(default_factory=list)
    alike_rows: list[EqualRows] = field(default_factory=list)
    lookups: list[Lookup] = field(default_factory=list)
    merges: dict[str, Merge] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.view: GraphView = self.facts.captured.view  # accessed for every node and input

    def state_at(self, node: str, slot: int) -> State:
        """The state of input `slot` for this node; outside autodiff a gradient has the state after its exchange."""
        tensor = self.view.inputs(node)[slot]
        return self.marked.get((tensor, node)) or self.states.get(tensor, LOCAL)

    def input_states(self, node: str) -> list[State]:
        """The states of all inputs as this node reads them."""
        return [self.state_at(node, slot) for slot in range(len(self.view.inputs(node)))]

    def value_state(self, variable: str) -> State:
        """The state of a variable's value for its readers."""
        if variable in self.assumptions.table_of and not self.is_mirrored(variable):
            return Rows(self.assumptions.table_of[variable])
        return LOCAL if variable in self.assumptions.local_variables else SAME

    def is_mirrored(self, variable: str) -> bool:
        """Whether every worker has a copy of this variable, although its rows have owners."""
        return variable in self.facts.tables and self.facts.tables[variable].replicated

    def marked_gradient(self, part: str) -> State:
        """The state of a variable's dense gradient outside autodiff: full everywhere, or the owners' rows."""
        return Rows(part) if self.is_mirrored(part) else SAME

    def set_all(self, node: str, state: State) -> None:
        """Sets the state of all outputs of a node."""
        for tensor in self.view.outputs(node):
            self.states[tensor] = state

    def slice_rows(self, table: str, edge: Edge) -> None:
        """Makes an edge read the local rows of its input."""
        tensor = self.view.inputs(edge.node)[edge.slot]
        self.slices.setdefault((tensor, table), []).append(edge)

    def gather_rows(self, tensor: str, table: str, *edges: Edge) -> None:
        """Makes the edges, and fetches of the tensor, read all rows of it."""
        self.gathers.setdefault(tensor, (table, []))[1].extend(edges)

    def condition(self, branches: Branches) -> State:
        """The state of the predicates of branches, and of loops."""
        return find_worst_state([(self._loop if b.is_loop else self._predicate)(b.predicate) for b in branches])

    def _loop(self, frame: str) -> State:
        """Whether a loop runs equally many iterations on all workers, as layouts let it do."""
        layouts, decides = self.facts.layouts, loop_conditions(self.view).get(frame, "")
        fact = layouts.facts.get(decides) if layouts is not None else None
        return SAME if fact is not None and fact.is_same else LOCAL

    def _predicate(self, tensor: str, copied: State = LOCAL) -> State:
        """The state of a predicate for the ops that read it, or a copy of it.

        Args:
            tensor: the predicate.
            copied: the state of the tensor that it copies, for a copy that the traversal has not reached.
        """
        state, states = self.states.get(tensor, copied), []
        for edge in self.view.consumers(tensor):
            op, marked = self.view.op(edge.node), self.marked.get((tensor, edge.node))
            if op in SWITCHES and edge.slot == 1:
                states.append(marked or state)
            elif op == "Identity":
                states.append(marked or self._predicate(f"{edge.node}:0", state))
        return find_worst_state(states) if states else state

    def agrees(self, branches: Branches) -> bool:
        """Whether all workers enter these branches or none; a fed predicate becomes worker 0's."""
        return self.require_same(self.condition(branches)) == SAME

    def require_same(self, state: State) -> State:
        """Makes fed values worker 0's on all workers where shared state depends on them."""
        if isinstance(state, FedScalars):
            self.fed.update(state.placeholders)
            return SAME
        return state


def are_paired(walk: Walk, values: Values, indices: Indices) -> bool:
    """Whether rows and row numbers belong together, piece by piece."""
    pieces = [walk.pairs.get(tensor, [tensor]) for tensor in indices.tensors]
    value_tensors = values.tensors
    return len(value_tensors) == len(pieces) and all(t in piece for t, piece in zip(value_tensors, pieces, strict=True))


def part_of(walk: Walk, state: State) -> str:
    """The variable op that a state along rows belongs to."""
    return walk.part_of_token.get(state.of, state.of)


def read_value(walk: Walk, state: State) -> State:
    """The value of a reference where an op reads it as a value."""
    return walk.value_state(state.variable) if isinstance(state, Handle) else state


def set_handle(walk: Walk, node: str, variable: str) -> None:
    """Makes a node's outputs the variable itself; a fetched reference means the full value."""
    walk.set_all(node, Handle(variable))
    if isinstance(walk.value_state(variable), Rows) and walk.view.op(variable) != "VarHandleOp":
        for tensor in walk.view.outputs(node):
            walk.gather_rows(tensor, walk.assumptions.table_of[variable])


def sum_of_parts(walk: Walk, node: str, summed: State, kind: str, weight: str = "") -> None:
    """Makes a node's result a part of the value of one process: the parts of all workers, or owners, are reduced.

    Args:
        walk: the traversal.
        node: returns a part.
        summed: the state of its operand.
        kind: the reduction (rewrites.AllReduce).
        weight: for a mean, the averaged tensor.
    """
    tensor = f"{node}:0"
    edges = tuple(walk.view.consumers(tensor))
    table = server_table(walk, summed)
    walk.all_reduces.append(AllReduce(tensor, edges, kind, weight, table))
    walk.set_all(node, SAME)


def server_table(walk: Walk, state: State) -> str:
    """The table on servers whose owners store tensors of this state; empty for any other state."""
    if isinstance(state, Extent):
        return server_table(walk, state.along)
    if not isinstance(state, AtOwners):
        return ""
    table = state.table
    return table if table in walk.facts.tables and walk.facts.tables[table].servers else ""
