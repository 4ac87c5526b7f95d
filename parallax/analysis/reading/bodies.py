"""The bodies of functions, as graphs of their own."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf
from tensorflow.python.framework.function_def_to_graph import function_def_to_graph_def

from parallax.analysis.reading.inline import inline_calls, knowing
from parallax.analysis.reading.lower import connect_optionals, lower_conditionals
from parallax.graph.view import GraphView, tensor_name
from parallax.types import FunctionLibrary

ARGUMENT = "_Arg"
"""The op type of a function's arguments, in the graph of its body."""


@dataclass(frozen=True, slots=True)
class Body:
    """A function as a graph of its own, with its arguments and results in order."""

    view: GraphView
    arguments: tuple[str, ...]
    results: tuple[str, ...]


def body_of(view: GraphView, name: str) -> Body:
    """The graph of a function, with the shapes of its tensors; without calls and conditionals in it. Each is read once.

    Args:
        view: a graph, or a body, whose library has the function.
        name: the function's.
    """
    known: dict[str, Body] = view.remembered.setdefault(body_of, {})
    if name not in known:
        known[name] = _read_body(view.graph_def.library, name)
        known[name].view.remembered[body_of] = known
    return known[name]


def _select_needed(library: FunctionLibrary, name: str) -> FunctionLibrary:
    """A function, and those that its body runs, as ops or by attributes: to import all of them takes long."""
    known = {one.signature.name: one for one in library.function}
    found, waiting = {name}, [name]
    while waiting:
        for node in known[waiting.pop()].node_def:
            values = node.attr.values()
            run = {node.op} | {value.func.name for value in values if value.HasField("func")}
            run |= {one.name for value in values for one in value.list.func}
            waiting += (run & known.keys()) - found
            found |= run & known.keys()
    return type(library)(function=[one for one in library.function if one.signature.name in found])


def _read_body(whole: FunctionLibrary, name: str) -> Body:
    library = _select_needed(whole, name)
    function = next(f for f in library.function if f.signature.name == name)
    with knowing(library):
        graph_def, flat_names = function_def_to_graph_def(function)
    graph_def.library.CopyFrom(library)
    inlined, _ = inline_calls(graph_def)
    while (lowered := lower_conditionals(inlined, lowers_all=True)) is not inlined:
        inlined, _ = inline_calls(lowered)
    inlined = connect_optionals(inlined)
    for node in inlined.node:
        node.attr.pop("_class", None)  # the places of other graphs' nodes
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(inlined, name="")
    shaped = graph.as_graph_def(add_shapes=True)
    arguments = [arg.name for arg in function.signature.input_arg]
    for node in shaped.node:
        if node.name in arguments:
            node.op = ARGUMENT
            node.attr["T"].CopyFrom(node.attr["dtype"])
    results = [tensor_name(flat_names[function.ret[arg.name]]) for arg in function.signature.output_arg]
    return Body(GraphView(shaped), tuple(f"{name}:0" for name in arguments), tuple(results))
