"""Makes sources of the parts of sparse and ragged tensors that an iterator or a queue gives for a batch.

Such a tensor comes as one value, or as a text or a number for each row, of which an op makes places, values and a
shape, or the ends of rows and their elements. What reads these then reads a source that has the mark of such a part.
"""

from __future__ import annotations

import tensorflow as tf

from parallax.analysis.reading.batches.find_open_batches import SOURCES
from parallax.base.types import GraphDef, NodeDef
from parallax.graph.batches import mark_parts
from parallax.graph.control_flow import branches_of
from parallax.graph.view import GraphView, node_of

_SCOPE = "parallax_parts"
_SPARSE = ("DeserializeSparse", "DeserializeManySparse", "TakeManySparseFromTensorsMap")
_RAGGED = ("RaggedTensorFromVariant",)
_COPIES = ("Identity", "Squeeze", "Reshape", "ExpandDims")


def with_element_parts(view: GraphView) -> GraphView:
    """The graph with sources in place of the parts of batches; the graph itself where these have none."""
    givers = {node: giver for node in view.nodes_of((*_SPARSE, *_RAGGED)) if (giver := _find_giver(view, node))}
    if not givers:
        return view
    changed = type(view.graph_def)()
    changed.CopyFrom(view.graph_def)
    by_name = {node.name: node for node in changed.node}
    for node, giver in givers.items():
        are_sparse = view.op(node) in _SPARSE
        parts = {tensor: _add_part(view, changed, tensor) for tensor in view.outputs(node)}
        mark_parts(giver, list(parts.values()), are_sparse)
        last = view.outputs(node)[-1]
        parts |= dict.fromkeys(_find_stated_shapes(view, last) if are_sparse else (), parts[last])
        for tensor, part in parts.items():
            for edge in view.consumers(tensor):
                by_name[edge.node].input[edge.slot] = part.name
    return GraphView(changed)


def _find_giver(view: GraphView, node: str) -> str:
    """The source of the batch of which a node makes parts, outside of branches and loops; empty if there is none.

    Ragged rows of a known number are left alone: TensorFlow puts it into constants of their ops.
    """
    if view.op(node) in _RAGGED and None not in (view.shape(view.outputs(node)[0]) or (None,)):
        return ""
    source = node_of(view.inputs(node)[0])
    while view.op(source) in _COPIES:
        source = node_of(view.inputs(source)[0])
    return source if view.op(source) in SOURCES and not branches_of(view).get(node) else ""


def _add_part(view: GraphView, changed: GraphDef, tensor: str) -> NodeDef:
    """Adds the source of a part to a graph."""
    made: NodeDef = changed.node.add(op="PlaceholderWithDefault", name=f"{_SCOPE}/{tensor.replace(':', '/')}")
    made.input.append(tensor)
    shape = tf.TensorShape(view.shape(tensor)).as_proto()
    made.attr["dtype"].type = view.dtype(tensor)
    made.attr["shape"].shape.CopyFrom(shape)
    made.attr["_output_shapes"].list.shape.add().CopyFrom(shape)
    return made


def _find_stated_shapes(view: GraphView, shape: str) -> list[str]:
    """The tensors that have the entries of a shape, some as numbers, as TensorFlow puts in those that it knows."""
    entries = [t for edge in view.consumers(shape) if view.op(edge.node) == "Unpack" for t in view.outputs(edge.node)]
    packs = {edge.node for tensor in entries for edge in view.consumers(tensor) if view.op(edge.node) == "Pack"}
    return [
        f"{pack}:0"
        for pack in sorted(packs)
        if len(view.inputs(pack)) == len(entries)
        and all(a == b or view.constant(a) is not None for a, b in zip(view.inputs(pack), entries, strict=True))
    ]
