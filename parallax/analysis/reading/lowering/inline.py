"""Inlines function calls of a GraphDef, so that lookups and gradients inside `tf.function` are seen as ops.

Each result of a call becomes an Identity that its consumers read, as one result may be on a worker and another on a
server. The call's name remains as an IdentityN over these, so that fetches by name still work. Bodies of loops and
conditionals stay in place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace

import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.python.framework.function_def_to_graph import function_def_to_graph_def

from parallax.base.types import FunctionDef, FunctionLibrary, GraphDef, NodeDef
from parallax.graph.view import GraphView, node_of, split_tensor, tensor_name

_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_MAX_DEPTH = 50
_SHAPES = "_output_shapes"


@dataclass(frozen=True, slots=True)
class InlinedCall:
    """A call that was inlined.

    Attributes:
        name: of the call.
        function: the called function.
        arguments: the input tensors, in order.
        body: the names of the function's nodes, in its order; in the graph they are under the call's name.
        results: the nodes of its results, in order.
    """

    name: str
    function: str
    arguments: tuple[str, ...]
    body: tuple[str, ...]
    results: tuple[str, ...]

    def inner(self, node: str) -> str:
        """The name in the graph of a node of the function."""
        return f"{self.name}/{node}"


def inline_calls(graph_def: GraphDef) -> tuple[GraphDef, tuple[InlinedCall, ...]]:
    """A copy of the graph without function calls at its top level, and the calls.

    The graph itself is returned when it has none. Recursive functions are expanded to a depth of 50. Calls within a
    function follow the call of that function.
    """
    calls: list[InlinedCall] = []
    with registering_library(graph_def.library) if _has_calls(graph_def) else nullcontext():
        for _ in range(_MAX_DEPTH):
            if not _has_calls(graph_def):
                break
            graph_def = _inline_once(graph_def, calls)
    return graph_def, _redirect_to_results(graph_def, calls)


@contextmanager
def registering_library(library: FunctionLibrary) -> Iterator[None]:
    """A context in which functions can be imported whose nodes run others of the library under their names, as ops."""
    with tf.Graph().as_default():
        tf.graph_util.import_graph_def(graph_pb2.GraphDef(library=library), name="")
        yield


def _has_calls(graph_def: GraphDef) -> bool:
    functions = {f.signature.name for f in graph_def.library.function if not f.signature.attr}
    return any(node.op in _CALLS or node.op in functions for node in graph_def.node)


def _find_callee(node: NodeDef, functions: Mapping[str, FunctionDef]) -> FunctionDef | None:
    """The function that a node calls, by a call op or under the function's own name as for a Defun."""
    if node.op in _CALLS:
        return functions.get(node.attr["f"].func.name)
    function = functions.get(node.op)
    return None if function is None or function.signature.attr else function  # types by attribute: not expanded


def _redirect_to_results(graph_def: GraphDef, calls: list[InlinedCall]) -> tuple[InlinedCall, ...]:
    """Redirects consumers of a call to the Identity of its result, in place; returns the calls with such arguments."""
    result_of = {f"{call.name}:{i}": f"{node}:0" for call in calls for i, node in enumerate(call.results)}
    for node in graph_def.node if calls else ():
        for slot, name in enumerate(node.input):
            if not name.startswith("^") and tensor_name(name) in result_of:
                node.input[slot] = result_of[tensor_name(name)]
    return tuple(replace(call, arguments=tuple(result_of.get(t, t) for t in call.arguments)) for call in calls)


def _inline_once(graph_def: GraphDef, calls: list[InlinedCall]) -> GraphDef:
    functions = {f.signature.name: f for f in graph_def.library.function}
    out = graph_pb2.GraphDef(versions=graph_def.versions, library=graph_def.library)
    for node in graph_def.node:
        if (function := _find_callee(node, functions)) is not None:
            calls.append(_expand(out, node, function))
        else:
            out.node.append(node)
    return out


def _expand(out: GraphDef, call: NodeDef, function: FunctionDef) -> InlinedCall:
    """Appends the nodes of a function's body for one call, and the IdentityN that takes over the call's name."""
    body, flat_names = function_def_to_graph_def(function)
    data = [tensor_name(i) for i in call.input if not i.startswith("^")]
    controls = [i for i in call.input if i.startswith("^")]
    arguments = {arg.name: data[i] for i, arg in enumerate(function.signature.input_arg)}

    def outer(name: str) -> str:
        if name.startswith("^"):
            inner = name[1:]
            return f"^{node_of(arguments[inner])}" if inner in arguments else f"^{call.name}/{inner}"
        node, number = split_tensor(tensor_name(name))
        return arguments[node] if node in arguments else f"{call.name}/{node}:{number}"

    for node in body.node:
        if node.name in arguments:
            continue
        copy = out.node.add()
        copy.CopyFrom(node)
        copy.name = f"{call.name}/{node.name}"
        del copy.input[:]
        copy.input.extend(_inputs([outer(i) for i in node.input], controls))
        if "_class" in copy.attr:
            del copy.attr["_class"]
        if call.device and not copy.device:
            copy.device = call.device
    results = [outer(flat_names[function.ret[arg.name]]) for arg in function.signature.output_arg]
    effects = [f"^{call.name}/{function.control_ret[name]}" for name in function.signature.control_output]
    types = [arg.type for arg in function.signature.output_arg]
    outputs = _results(out, call, zip(results, types, strict=True), [*effects, *controls])
    end = out.node.add()
    end.name = call.name
    end.op = "IdentityN" if results else "NoOp"
    end.input.extend(_inputs(list(outputs), [*effects, *controls]))
    if results:
        end.attr["T"].list.type.extend(types)
    if len(call.attr[_SHAPES].list.shape):
        end.attr[_SHAPES].CopyFrom(call.attr[_SHAPES])
    body_names = tuple(node.name for node in function.node_def)
    return InlinedCall(call.name, function.signature.name, tuple(data), body_names, outputs)


def _results(out: GraphDef, call: NodeDef, results: Iterable[tuple[str, int]], controls: list[str]) -> tuple[str, ...]:
    """Appends an Identity for each result, with the call's control inputs."""
    names = []
    for number, (result, dtype) in enumerate(results):
        node = out.node.add()
        node.name = f"{call.name}/result_of_call_{number}"
        node.op = "Identity"
        node.input.extend(_inputs([result], controls))
        node.attr["T"].type = dtype
        if number < len(call.attr[_SHAPES].list.shape):
            node.attr[_SHAPES].list.shape.add().CopyFrom(call.attr[_SHAPES].list.shape[number])
        names.append(node.name)
    return tuple(names)


def _inputs(names: list[str], controls: list[str]) -> list[str]:
    """Data inputs, possibly repeated, followed by control inputs without repetition."""
    tensors = [name for name in names if not name.startswith("^")]
    waits = [name for name in names if name.startswith("^")]
    return [*tensors, *dict.fromkeys([*waits, *controls])]


def find_handles(inferred: GraphView, tensors: Sequence[str]) -> list[NodeDef | None]:
    """The variables behind some tensors, which are their handles."""
    nodes = [inferred.nodes[node_of(tensor)] for tensor in tensors]
    return [node if node.op == "VarHandleOp" else None for node in nodes]


def graph_of_function(
    function: FunctionDef, around: GraphDef, handles: Sequence[NodeDef | None]
) -> tuple[GraphDef, dict[str, str]]:
    """A function's body as a graph with its own variables, whose handles then have shapes."""
    with registering_library(around.library):
        graph_def, flat_names = function_def_to_graph_def(function)
    graph_def.library.CopyFrom(around.library)
    variables = dict(zip((arg.name for arg in function.signature.input_arg), handles, strict=True))
    for node in graph_def.node:
        node.attr.pop("_class", None)  # colocations with other graphs' nodes
        variable = variables.get(node.name)
        if variable is not None:
            node.op = variable.op
            node.attr.clear()
            for key in ("dtype", "shape"):
                node.attr[key].CopyFrom(variable.attr[key])
    return graph_def, flat_names
