"""Checks an opened graph at another batch length: what was taken for the batch and is not has incompatible shapes."""

from __future__ import annotations

from collections.abc import Mapping, Set

import tensorflow as tf

from parallax.analysis.reading.batches.open_bodies import drop_shapes
from parallax.base.types import GraphDef
from parallax.graph.view import GraphView, node_of

_FACTOR = 3
"""Ratio of the other length to the fixed one, which keeps divisibility by parts of the batch."""
_MOST_LETTERS = 160


def find_mismatch(opened: GraphDef, names: Mapping[str, str], apart: Set[str], length: int) -> str:
    """What TensorFlow reports of the shapes at another length; empty if they match.

    Args:
        opened: the graph with an open batch.
        names: source of the fixed batch -> that of the open one.
        apart: nodes to leave out, with those computed from them, such as gradients for the fixed length.
        length: of the fixed batch.
    """
    part = type(opened)(versions=opened.versions, library=opened.library)
    sources = {node_of(tensor) for tensor in names.values()}
    view, left = GraphView(opened), {*apart, *map(node_of, names)}
    for name in view.topological_order():
        if name not in sources and not left.isdisjoint((name, *view.nodes_before(name))):
            left.add(name)
    for node in opened.node:
        if node.name not in left:
            copy = part.node.add()
            copy.CopyFrom(node)
            copy.attr.pop("_class", None)  # the colocation may name a missing node
            if node.name in sources:
                copy.op = "Placeholder"
                del copy.input[:]
                copy.attr["shape"].shape.dim[0].size = _FACTOR * length
    drop_shapes(part.node)
    try:
        with tf.Graph().as_default():
            tf.graph_util.import_graph_def(part, name="")
    except (ValueError, tf.errors.InvalidArgumentError) as error:
        return str(error).partition("\n")[0][:_MOST_LETTERS]
    return ""
