"""What autodiff begins at, and what steps give besides what they train.

Steps report values, and add to variables of which each worker has a part, as metrics count (graph/batches.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from parallax.analysis.propagation.chosen_rows import PASSES
from parallax.analysis.propagation.walk import Walk
from parallax.graph.batches import is_part, reported_values
from parallax.graph.control_flow import SWITCHES
from parallax.graph.view import Edge, GraphView, once_per_view, split_tensor
from parallax.types import FunctionDef

_PASSES = (*PASSES, "CheckNumerics", "Snapshot", "PreventGradient", "EnsureShape")
_ADDS = ("Add", "AddV2", "AddN", "Sub")
_LEADS = ("Identity", *SWITCHES)
"""A variable's handle goes through them, into branches too."""
_WRITES = {"AssignVariableOp": "=", "AssignAddVariableOp": "+", "AssignSubVariableOp": "-"}


@dataclass(frozen=True, slots=True)
class Addition:
    """What is added to a part.

    Attributes:
        variable: the variable op.
        edge: by which the addition takes it.
    """

    variable: str
    edge: Edge


def trained_losses(walk: Walk) -> list[str]:
    """What autodiff began at where it delivered gradients that variables are trained with."""
    trained = {source.values for source in walk.known.sources}
    records = [r for r in walk.known.captured.records if any(values in trained for _, values, _ in r.gradients)]
    return list(dict.fromkeys(tensor for record in records for tensor in record.of))


def additions(view: GraphView) -> list[Addition]:
    """What a graph adds to variables of which each worker has a part (functions/counting.py refuses other writes)."""
    return [one for node in view.nodes if is_part(view.nodes[node]) for one in _of_variable(view, node)]


def written_within(view: GraphView) -> list[tuple[str, str]]:
    """(variable of which each worker has a part, loop or conditional that writes state and takes it)."""
    functions, found = {one.signature.name: one for one in view.graph_def.library.function}, []
    for variable in view.nodes if functions else ():
        if is_part(view.nodes[variable]):
            takers = dict.fromkeys(edge.node for edge in view.takers(f"{variable}:0"))
            found += [(variable, node) for node in takers if _writes(view, node, functions)]
    return found


def _writes(view: GraphView, node: str, functions: Mapping[str, FunctionDef]) -> bool:
    """Whether a function that a node runs writes a variable."""
    waiting, seen = [view.nodes[node]], set[str]()
    while waiting:
        one = waiting.pop()
        if one.op in _WRITES and seen:
            return True
        named = [f.name for attr in one.attr.values() for f in (attr.func, *attr.list.func) if f.name in functions]
        new = [name for name in named if name not in seen]
        seen.update(new)
        waiting += [inner for name in new for inner in functions[name].node_def]
    return False


def returned_parts(view: GraphView) -> list[tuple[str, str]]:
    """(variable of which each worker has a part, value that a step reports and computes of it)."""
    reported = {value: view.computed_of([split_tensor(value)[0]]) for value in reported_values(view)}
    parts = [node for node in view.nodes if is_part(view.nodes[node])] if reported else []
    return [(part, value) for part in parts for value, nodes in reported.items() if _reads(view, part) & nodes]


@once_per_view
def results(view: GraphView) -> tuple[str, ...]:
    """The tensors that steps of a graph give besides what they train: reported values, and what is added to parts.

    What metrics add up of reported values is told as these.
    """
    reported = reported_values(view)
    marked = {split_tensor(tensor)[0] for tensor in reported}
    added = [view.inputs(one.edge.node)[one.edge.slot] for one in additions(view)]
    own = [tensor for tensor in added if not view.computed_of([split_tensor(tensor)[0]]) & marked]
    return tuple(dict.fromkeys([*reported, *own]))


def _of_variable(view: GraphView, variable: str) -> Iterator[Addition]:
    waiting = [f"{variable}:0"]
    while waiting:
        handle = waiting.pop()
        for edge in view.consumers(handle):
            op = view.op(edge.node)
            if op in _LEADS:
                waiting += view.outputs(edge.node)
            elif _WRITES.get(op) == "=":
                yield from _of_assignment(view, variable, view.inputs(edge.node)[1])
            elif op in _WRITES:
                yield Addition(variable, Edge(edge.node, 1))


def _of_assignment(view: GraphView, variable: str, tensor: str) -> Iterator[Addition]:
    """What is added to the value that a variable had, where a new one is assigned; nothing where that is no sum."""
    reads = _reads(view, variable)
    while (node := split_tensor(tensor)[0]) not in reads:
        inputs = view.inputs(node)
        before = [t for t in inputs if view.computed_of([split_tensor(t)[0]]) & reads]
        if len(before) != 1 or view.op(node) not in (*_ADDS, *_PASSES):
            return
        if view.op(node) in _ADDS:
            yield from (Addition(variable, Edge(node, slot)) for slot, t in enumerate(inputs) if t != before[0])
        tensor = before[0]


def _reads(view: GraphView, variable: str) -> set[str]:
    handles, found = [f"{variable}:0"], set[str]()
    while handles:
        for edge in view.consumers(handles.pop()):
            if view.op(edge.node) in _LEADS:
                handles += view.outputs(edge.node)
            elif view.op(edge.node) == "ReadVariableOp":
                found.add(edge.node)
    return found
