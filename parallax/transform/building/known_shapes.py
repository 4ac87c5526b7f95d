"""Finds the shapes of a transformed graph from those of the user's graph and of new ops, and infers only changed ones.

TensorFlow infers shapes when it imports a graph, which takes longer than all passes together for a deep model. So it
imports only nodes whose inputs differ from the user's graph, and the nodes that depend on them.
"""

from __future__ import annotations

import tensorflow as tf

from parallax.base.types import Graph, GraphDef, NodeDef
from parallax.graph.view import GraphView, node_of, tensor_name

_SHAPES = "_output_shapes"
_TAKEN = "taken"


def with_shapes(graph_def: GraphDef, before: GraphView, made: Graph) -> GraphDef:
    """A copy of a graph, annotated with output shapes.

    Args:
        graph_def: the transformed graph.
        before: the user's graph, with shapes.
        made: a graph with the new ops, under the same names.
    """
    completed = tf.compat.v1.GraphDef()
    completed.CopyFrom(graph_def)
    for node in completed.node:
        node.attr.pop(_SHAPES, None)
    view = GraphView(completed)
    new = {op.name: op for op in made.get_operations()}
    seeds = [name for name, node in view.nodes.items() if _is_other(view, node, before, name in new)]
    changed = view.descendants(seeds)
    inferred = _infer(view, changed, before, made)
    for name, node in view.nodes.items():
        if name in changed:
            _set_shapes(node, inferred, name)
        elif name in before.nodes:
            if _SHAPES in before.nodes[name].attr:
                node.attr[_SHAPES].CopyFrom(before.nodes[name].attr[_SHAPES])
        else:
            _set_shapes(node, made, name)
    return completed


def _is_other(view: GraphView, node: NodeDef, before: GraphView, is_new: bool) -> bool:
    """Whether a node's shapes may differ from the known ones of its name."""
    known = before.nodes.get(node.name)
    if known is None:
        return not is_new
    if known.op != node.op or view.inputs(node.name) != before.inputs(node.name):
        return True
    return any(key[0] != "_" and known.attr[key] != value for key, value in node.attr.items() if key in known.attr)


def _set_shapes(node: NodeDef, graph: Graph, name: str) -> None:
    op = graph.get_operation_by_name(name)
    if op.outputs:
        node.attr[_SHAPES].list.shape.extend(output.get_shape().as_proto() for output in op.outputs)


def _infer(view: GraphView, changed: set[str], before: GraphView, made: Graph) -> Graph:
    """A graph of some nodes, in which placeholders replace inputs from other nodes."""
    part = tf.compat.v1.GraphDef()
    part.versions.CopyFrom(view.graph_def.versions)
    part.library.CopyFrom(view.graph_def.library)
    stands_for: dict[str, str] = {}

    def take(tensor: str) -> str:
        source = node_of(tensor)
        if source in changed:
            return tensor
        if tensor in stands_for:
            return stands_for[tensor]
        if not view.inputs(source):  # a constant's value may be a shape, and a handle knows that of its variable
            stands_for[tensor] = tensor
            if source not in sources:
                sources.add(source)
                _copy(part, view.nodes[source])
            return tensor
        stands_for[tensor] = f"{_TAKEN}/{len(stands_for)}"
        stand_in = part.node.add(op="Placeholder", name=stands_for[tensor])
        if source in before.nodes:
            dtype, shape = before.dtype(tensor), tf.TensorShape(before.shape(tensor))
        else:
            output = made.get_tensor_by_name(tensor)
            dtype, shape = output.dtype.as_datatype_enum, output.shape
        stand_in.attr["dtype"].type = dtype
        stand_in.attr["shape"].shape.CopyFrom(shape.as_proto())
        return stands_for[tensor]

    sources: set[str] = set()
    for name, node in view.nodes.items():
        if name in changed:
            inputs = [take(tensor_name(one)) for one in node.input if not one.startswith("^")]
            _copy(part, node).input.extend(inputs)
    scratch = tf.Graph()
    with scratch.as_default():
        tf.graph_util.import_graph_def(part, name="")
    return scratch


def _copy(part: GraphDef, node: NodeDef) -> NodeDef:
    """A copy of a node without inputs and device."""
    copied = part.node.add()
    copied.CopyFrom(node)
    del copied.input[:]
    copied.device = ""
    copied.attr.pop("_class", None)
    return copied
