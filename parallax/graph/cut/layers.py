"""Layers of a model in its graph: the ops that compute the outputs of layers are marked with the names of the layers.

The names of ops do not identify layers: TensorFlow numbers equal names, as layers do themselves.
"""

from __future__ import annotations

from tensorflow.core.framework import attr_value_pb2

from parallax.base.types import Operation
from parallax.graph.view import GraphView, once_per_view

LAYERS = "_parallax_layers"


def mark_layer(op: Operation, name: str) -> None:
    """Marks an op that computes the output of a layer; the outermost layer that returns it is marked last."""
    known = op.node_def.attr[LAYERS].list.s if LAYERS in op.node_def.attr else ()
    if name.encode() not in known:
        made = attr_value_pb2.AttrValue.ListValue(s=[*known, name.encode()])
        op._set_attr(LAYERS, attr_value_pb2.AttrValue(list=made))


@once_per_view
def nodes_of_layers(view: GraphView) -> dict[str, tuple[str, ...]]:
    """Layer -> the nodes that compute the outputs of its calls, in the order of the graph."""
    nodes_by_layer: dict[str, list[str]] = {}
    for name, node in view.nodes.items():
        for layer in node.attr[LAYERS].list.s if LAYERS in node.attr else ():
            nodes_by_layer.setdefault(layer.decode(), []).append(name)
    return {layer: tuple(nodes) for layer, nodes in nodes_by_layer.items()}
