"""Infers the shapes of a GraphDef's tensors, by TensorFlow.

`tf.import_graph_def` would make a Python object of each op, with its traceback, devices and contexts, which takes three
quarters of its time. The import by TensorFlow's C API, which infers the shapes, is all that is needed here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2
from tensorflow.python.client import pywrap_tf_session as c_api
from tensorflow.python.framework import device, ops
from tensorflow.python.framework.c_api_util import ScopedTFImportGraphDefOptions, ScopedTFImportGraphDefResults

from parallax.base.types import AttrValue, GraphDef, NodeDef
from parallax.graph.view import GraphView

_SHAPES, _COLOCATIONS, _LOCATION = "_output_shapes", "_class", "loc:@"

_Dims = tuple[tuple[int | None, ...], bool]
"""The lengths of a tensor, None for one that is unknown; and whether its rank is."""


def infer_shapes(graph_def: GraphDef) -> GraphDef:
    """A copy of a graph as TensorFlow imports it, with the shapes of all outputs; shapes known before are given to it.

    Raises:
        InvalidArgumentError: TensorFlow finds the graph invalid.
    """
    graph, options = tf.Graph(), ScopedTFImportGraphDefOptions()
    c_api.TF_ImportGraphDefOptionsSetUniquifyNames(options.options, True)
    buffer = c_api.TF_NewBufferFromString(graph_def.SerializeToString())
    try:
        with graph._c_graph.get() as c_graph:
            results = c_api.TF_GraphImportGraphDefWithResults(c_graph, buffer, options.options)
        ScopedTFImportGraphDefResults(results)  # which frees them
    finally:
        c_api.TF_DeleteBuffer(buffer)
    shapes_by_op = {}
    for c_op in graph.new_operations():
        op = c_api.PyOperation(c_op, ops.SymbolicTensor)
        op.graph = graph
        op._init_outputs()
        shapes_by_op[op.name] = tuple([_dims_of(tensor) for tensor in op.outputs])
    inferred = graph.as_graph_def()
    attributes: dict[tuple[_Dims, ...], AttrValue] = {}
    for node in inferred.node:
        shapes = shapes_by_op[node.name]
        if shapes not in attributes:
            attributes[shapes] = _make_attribute(shapes)
        if shapes:
            node.attr[_SHAPES].CopyFrom(attributes[shapes])
    _copy_colocated_devices(inferred)
    return inferred


def infer_shapes_again(graph_def: GraphDef) -> GraphView:
    """A copy of a graph with the shapes that follow from those of its sources, whatever was known before.

    Raises:
        InvalidArgumentError: TensorFlow finds the graph invalid.
    """
    bare = type(graph_def)()
    bare.CopyFrom(graph_def)
    drop_shapes(bare.node)
    return GraphView(infer_shapes(bare))


def drop_shapes(nodes: Iterable[NodeDef]) -> None:
    """Removes the inferred shapes."""
    for node in nodes:
        node.attr.pop(_SHAPES, None)


def with_stated_shapes(view: GraphView, known: Mapping[str, Sequence[int | None]]) -> GraphView:
    """A copy of the graph with the shapes of some nodes stated; None is an open length.

    Raises:
        InvalidArgumentError: TensorFlow finds the graph with these shapes invalid.
    """
    graph_def = type(view.graph_def)()
    graph_def.CopyFrom(view.graph_def)
    for node in graph_def.node:
        if node.name in known:
            shape_of = node.attr["shape"].shape
            shape_of.Clear()
            for length in known[node.name]:
                shape_of.dim.add(size=-1 if length is None else length)
            node.attr.pop(_SHAPES, None)
    return GraphView(infer_shapes(graph_def))


def _dims_of(tensor: c_api.PyTensor) -> _Dims:
    dims, is_unknown = tensor._shape
    return tuple(dims), is_unknown


def _make_attribute(shapes: tuple[_Dims, ...]) -> AttrValue:
    attribute = attr_value_pb2.AttrValue()
    for dims, is_unknown in shapes:
        shape = attribute.list.shape.add(unknown_rank=is_unknown)
        for size in () if is_unknown else dims:
            shape.dim.add(size=-1 if size is None else size)
    return attribute


def _copy_colocated_devices(graph_def: GraphDef) -> None:
    """Copies to an op the device of the first colocated op that has one, as `tf.import_graph_def` does."""
    nodes_by_name = {node.name: node for node in graph_def.node}
    places_by_node = {}
    for name, node in nodes_by_name.items():
        locations = [one.decode() for one in node.attr[_COLOCATIONS].list.s] if _COLOCATIONS in node.attr else []
        places = [one.removeprefix(_LOCATION) for one in locations if one.startswith(_LOCATION)]
        places_by_node[name] = [nodes_by_name[one] for one in places if one != name and one in nodes_by_name]
    for name, places in places_by_node.items():
        if places:
            nodes_by_name[name].device = ""
    for name, places in places_by_node.items():
        found = next((place.device for place in places if place.device), "")
        if found:
            nodes_by_name[name].device = device.canonical_name(found)
