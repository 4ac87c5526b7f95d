"""Restores the TensorFlow 1 loop and conditional contexts that autodiff needs and that a GraphDef lacks.

TensorFlow stores them in two collections of the graph, which a MetaGraphDef includes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from parallax.base.types import Graph, GraphDef, NodeDef, Operation
from parallax.graph.view import node_of, tensor_name

_KEYS = (tf.compat.v1.GraphKeys.WHILE_CONTEXT, tf.compat.v1.GraphKeys.COND_CONTEXT)
_LEAVES = ("Exit", "RefExit")
_JOINS = ("Merge", "RefMerge")


@dataclass(frozen=True, slots=True)
class Contexts:
    """The contexts of a graph's loops and conditionals.

    Attributes:
        nodes: all nodes of the graph.
        collected: collection -> WhileContextDef or CondContextDef of each.
    """

    nodes: Set[str]
    collected: Mapping[str, Sequence[Any]]

    @property
    def are_none(self) -> bool:
        """Whether there is no TensorFlow 1 loop or conditional."""
        return not any(self.collected.values())


def read_contexts(graph: Graph) -> Contexts:
    """The contexts of a user's graph."""
    collected = {key: [one.to_proto() for one in graph.get_collection(key)] for key in _KEYS}
    return Contexts({op.name for op in graph.get_operations()}, collected)


def import_with_contexts(graph_def: GraphDef, contexts: Contexts) -> Graph:
    """A graph in which loops and conditionals can be differentiated; its nodes are those of a GraphDef.

    Nodes that were added to the user's graph are in the context of their inputs.

    Raises:
        KeyError, ValueError: a context refers to missing nodes.
    """
    meta = tf.compat.v1.MetaGraphDef()
    meta.graph_def.CopyFrom(graph_def)
    added = [node for node in graph_def.node if node.name not in contexts.nodes]
    for key, collected in contexts.collected.items():
        for one in collected:
            context = type(one).FromString(one.SerializeToString())
            _add_nodes(context, added)
            meta.collection_def[key].bytes_list.value.append(context.SerializeToString())
    graph = tf.Graph()
    with graph.as_default():
        tf.compat.v1.train.import_meta_graph(meta)
    return graph


def _add_nodes(context: Any, added: Sequence[NodeDef]) -> None:
    values = context.values_def
    within = {node_of(name) for name in {*values.values} - values.external_values.keys()}
    for node in added:
        if node.op == "Enter" and node.attr["frame_name"].s.decode() == context.context_name:
            values.values.append(f"{node.name}:0")
            values.external_values[tensor_name(node.input[0])] = f"{node.name}:0"
            within.add(node.name)
    for _ in added:
        readers = [
            n for n in added if n.name not in within and any(node_of(input_name) in within for input_name in n.input)
        ]
        if not readers:
            break
        within.update(node.name for node in readers)
        values.values.extend(f"{node.name}:0" for node in readers)
    for nested in context.nested_contexts:
        _add_nodes(getattr(nested, nested.WhichOneof("ctxt")), added)


@contextmanager
def in_style_of(graph: Graph) -> Iterator[None]:
    """A context in which arrays of tensors have the implementation of a given graph's."""
    v1 = tf.compat.v1
    is_old = any(op.type.startswith("TensorArray") for op in graph.get_operations()) and v1.control_flow_v2_enabled()
    if is_old:
        v1.disable_control_flow_v2()
    try:
        yield
    finally:
        if is_old:
            v1.enable_control_flow_v2()


def is_complete(graph: Graph, nodes: Set[str]) -> bool:
    """Whether the contexts of all given nodes within loops and conditionals are known.

    Nodes without results, such as assertions, are not differentiated.
    """
    apart = (op for op in map(graph.get_operation_by_name, nodes) if op.outputs and _context(op) is None)
    return not any(op.type not in (*_LEAVES, *_JOINS) and any(map(_is_within, op.inputs)) for op in apart)


def _is_within(tensor: tf.Tensor) -> bool:
    return tensor.op.type not in _LEAVES and _context(tensor.op) is not None


def _context(op: Operation) -> Any:
    return op._get_control_flow_context()
