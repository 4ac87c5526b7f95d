"""Translates the records of autodiff to the names of the captured graph.

Records are stored by the graph in which autodiff ran (record.py), which may be that of a `tf.function`. Its ops are in
the captured graph once for every inlined call, under the call's name. Gradients in the bodies of loops and conditionals
are not in it; they are listed by the node that runs them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import tensorflow as tf

from parallax.analysis.reading.construction import record
from parallax.analysis.reading.construction.launcher_graph import map_functions
from parallax.analysis.reading.lowering.inline import InlinedCall
from parallax.base.errors import GraphError
from parallax.base.types import FuncGraph, FunctionDef, Graph, NodeDef, Operation
from parallax.graph.ops import state_op, takes_functions
from parallax.graph.view import GraphView, node_of, split_tensor


@dataclass(frozen=True, slots=True)
class CapturedRecord:
    """One call of autodiff, as GradientRecord, by the names of the captured graph.

    Attributes:
        gradients: (target, values tensor, indices tensor or None) for every target with a gradient.
        ops: the nodes created by autodiff.
        cotangents: (gradient delivered before, the derivative with respect to it), where this call differentiated
            through it.
        of: the differentiated tensors, such as a loss.
        is_plain: whether it can be repeated, as `tf.gradients` of these with respect to the targets.
        weights: for each of these its weights, where it has any; empty where none has.
        stopped: the tensors through which it was not differentiated.
        preceding: the nodes after which all of autodiff's run.
        dense_shapes: values tensor -> the target's shape that came with it, where this call computed one.
        forward: node of autodiff -> the forward node to which it belongs, where that is known.
    """

    gradients: tuple[tuple[str, str, str | None], ...]
    ops: frozenset[str]
    cotangents: tuple[tuple[str, str], ...] = ()
    of: tuple[str, ...] = ()
    is_plain: bool = False
    weights: tuple[str, ...] = ()
    stopped: tuple[str, ...] = ()
    preceding: tuple[str, ...] = ()
    dense_shapes: Mapping[str, str] = field(default_factory=dict)
    forward: Mapping[str, str] = field(default_factory=dict, repr=False)


def losses_of(records: Sequence[CapturedRecord]) -> set[str]:
    """The nodes that were differentiated."""
    return {node_of(tensor) for record in records for tensor in record.of}


@dataclass(frozen=True, slots=True)
class HiddenGradient:
    """A gradient with respect to `target`, in a function that `node` runs as the body of a loop or a conditional.

    `writes` says whether that function, or one that it runs, writes state.
    """

    node: str
    target: str
    writes: bool


@dataclass(frozen=True)
class _Place:
    """The position of a graph's ops in the captured graph: itself, or a function's graph for one call.

    Attributes:
        graph: the tf.Graph.
        call: the name of the call; empty for the graph itself.
        names: op -> node.
        arguments: placeholder of the function -> the argument of the call.
        results: result of a call -> the tensor that it becomes in the captured graph.
    """

    graph: Graph
    call: str
    names: dict[str, str]
    arguments: dict[str, str]
    results: dict[str, str]

    def tensor(self, name: str) -> str:
        """The tensor of the captured graph; empty where there is none."""
        op, number = split_tensor(name)
        if op in self.arguments:
            return self.arguments[op]
        inlined = f"{self.names[op]}:{number}" if op in self.names else ""
        return self.results.get(inlined, inlined)


def records_in(
    graph: Graph,
    nodes: Sequence[str],
    calls: Sequence[InlinedCall],
    view: GraphView,
    expanded: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
) -> tuple[tuple[CapturedRecord, ...], tuple[HiddenGradient, ...]]:
    """The records of autodiff, in the captured graph and in functions that it runs.

    Args:
        graph: the user's tf.Graph.
        nodes: its nodes in order.
        calls: those that were inlined.
        view: the captured graph.
        expanded: node -> the nodes in its place.
    """
    functions = _function_graphs(graph)
    results = {f"{call.name}:{i}": f"{node}:0" for call in calls for i, node in enumerate(call.results)}
    places = [_Place(graph, "", {name: name for name in nodes}, {}, results)]
    places += [_place(call, functions[call.function], results) for call in calls if call.function in functions]
    records = []
    within = {**_nodes_of_calls(calls), **expanded}
    for place in places:
        ops = list(place.names.values()) if place.call else list(nodes)
        made = [place.names.get(op.name, "") for op in place.graph.get_operations()] if place.call else ops
        for one in record.records_of(place.graph):
            inner = _with_calls([name for name in made[one.first_op : one.end_op] if name], within)
            forward = dict(_find_forward(one, places, place, made))
            records.append(replace(_record(one, places, place, inner), forward=forward))
    return tuple(r for r in records if r.gradients or r.cotangents), tuple(_find_hidden(functions, places, view))


def _function_graphs(graph: Graph) -> dict[str, FuncGraph]:
    """The graphs of a graph's functions, by their names; functions read from files have none."""
    graph_by_name, renamed = {}, map_functions(graph)
    for name, function in graph._functions.items():
        traced = getattr(function, "_cached_graph", None)
        if traced is not None:
            graph_by_name[renamed.get(name, name)] = traced
    return graph_by_name


def _place(call: InlinedCall, graph: Graph, results: dict[str, str]) -> _Place:
    """The ops of a function's graph in one call: in the function's order, some under another name."""
    inputs = [tensor.op.name for tensor in graph.inputs]
    of_inputs = {*inputs}
    ops = [name for op in graph.get_operations() if (name := op.name) not in of_inputs]
    # Ops added to the graph after the function was made of it are in no call.
    names = {op: call.inner(node) for op, node in zip(ops, call.body, strict=False)}
    return _Place(graph, call.name, names, dict(zip(inputs, call.arguments, strict=False)), results)


def _nodes_of_calls(calls: Sequence[InlinedCall]) -> dict[str, tuple[str, ...]]:
    return {call.name: (*map(call.inner, call.body), *call.results) for call in calls}


def _with_calls(nodes: list[str], within: dict[str, tuple[str, ...]]) -> frozenset[str]:
    """The nodes, and those of the inlined calls among them."""
    nodes_and_calls = set(nodes)
    waiting = list(nodes)
    while waiting:
        inner = within.get(waiting.pop(), ())
        nodes_and_calls.update(inner)
        waiting += inner
    return frozenset(nodes_and_calls)


def _record(one: record.GradientRecord, places: Sequence[_Place], place: _Place, ops: frozenset[str]) -> CapturedRecord:
    gradients, shapes = [], dict[str, str]()
    for gradient in one.gradients:
        target = _resolve(places, place, gradient.target)
        values = _resolve(places, place, gradient.values)
        indices = _resolve(places, place, gradient.indices) if gradient.indices is not None else [None]
        if target and gradient.is_nested:
            raise GraphError(
                f"The gradient of {target[0]!r} consists of nested IndexedSlices: rows returned by tf.gather_nd are "
                "looked up a second time. Use tf.gather instead of tf.gather_nd there, or multiply its result by 1.0."
            )
        if target and values and indices:
            gradients.append((target[0], values[0], indices[0]))
            shape = _resolve(places, place, gradient.dense_shape) if gradient.dense_shape is not None else []
            if shape and node_of(shape[0]) in ops:
                shapes[values[0]] = shape[0]
    cotangents = [
        (gradient, tensor)
        for one_of in one.cotangents
        for tensor in _resolve(places, place, one_of.tensor)
        for gradient in _resolve(places, place, one_of.gradient)
    ]
    losses = tuple(tensor for loss in one.of for tensor in _resolve(places, place, loss)[:1])
    weights = tuple("".join(_resolve(places, place, by)[:1]) if by is not None else "" for by in one.weights)
    stopped = tuple(tensor for by in one.stopped for tensor in _resolve(places, place, by)[:1])
    preceding = tuple(node_of(tensor) for by in one.preceding for tensor in _resolve(places, place, by)[:1])
    is_plain = one.is_plain and len(losses) == len(one.of) and len(stopped) == len(one.stopped)
    is_plain = is_plain and all(
        bool(weight) == (by is not None) for weight, by in zip(weights, one.weights, strict=True)
    )
    return CapturedRecord(
        tuple(gradients), ops, tuple(cotangents), losses, is_plain, weights, stopped, preceding, shapes
    )


def _find_forward(
    one: record.GradientRecord, places: Sequence[_Place], place: _Place, made: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """The nodes of autodiff, each with the forward node to which it belongs."""
    ops = place.graph.get_operations()
    for number in range(one.first_op, min(one.end_op, len(made))):
        forward = record.forward_op(ops[number]) if made[number] else None
        found = forward and next((p.names[forward.name] for p in places if _has(p, forward, place)), "")
        if found:
            yield made[number], found


def _has(other: _Place, op: Operation, place: _Place) -> bool:
    """Whether an op belongs to a place that encloses another place, or to that place itself."""
    is_around = not other.call or other.call == place.call or place.call.startswith(f"{other.call}/")
    return other.graph is op.graph and is_around and op.name in other.names


def _resolve(places: Sequence[_Place], place: _Place, tensor: record.Place) -> list[str]:
    """A tensor resolved from a place; for another function's graph, in every call of that function."""
    places_of_graph = [place] if tensor.graph is place.graph else [p for p in places if p.graph is tensor.graph]
    around = [p for p in places_of_graph if not p.call or place.call.startswith(f"{p.call}/")]
    return [name for p in (around[-1:] or places_of_graph) if (name := p.tensor(tensor.name))]


def _find_hidden(
    functions: dict[str, FuncGraph], places: Sequence[_Place], view: GraphView
) -> Iterator[HiddenGradient]:
    """The gradients in the bodies of loops and conditionals."""
    library = {f.signature.name: f for f in view.graph_def.library.function}
    for name, node in view.nodes.items() if library else ():
        if not takes_functions(view.op(name)):
            continue
        run = _run_by(node, library)
        targets = [
            _outermost(gradient.target, places)
            for function in sorted(run)
            for one in record.records_of(functions.get(function))
            for gradient in one.gradients
        ]
        writes = any(
            state_op(n.op, _tensors(n)) is not None for f in (run if targets else ()) for n in library[f].node_def
        )
        for target in dict.fromkeys(targets):
            if node_of(target) in view.nodes:
                yield HiddenGradient(name, target, writes)


def _tensors(node: NodeDef) -> int:
    """The number of a node's input tensors."""
    return sum(not name.startswith("^") for name in node.input)


def _run_by(node: NodeDef, library: dict[str, FunctionDef]) -> set[str]:
    """The functions that a node runs, directly or indirectly."""
    functions_run: set[str] = set()
    waiting = [node]
    while waiting:
        for attribute in waiting.pop().attr.values():
            for function in (attribute.func, *attribute.list.func):
                if function.name in library and function.name not in functions_run:
                    functions_run.add(function.name)
                    waiting += library[function.name].node_def
    return functions_run


def _outermost(target: record.Place, places: Sequence[_Place]) -> str:
    """A target that functions captured, by its name in the outermost graph; a script's, as the call of its step."""
    graph, tensor = target.graph, target.graph.get_tensor_by_name(target.name)
    while hasattr(graph, "captures"):
        outer = next((o for o, inner in graph.captures if inner is tensor), None)
        if outer is None:
            return ":0"
        if not tf.is_symbolic_tensor(outer):
            around = [(p, inner) for p in places for o, inner in getattr(p.graph, "captures", ()) if o is outer]
            return next((name for place, inner in around if (name := place.tensor(inner.name))), ":0")
        graph, tensor = outer.graph, outer
    return str(tensor.name)
