"""Forgets the length of the global batch in the shapes that a front end's step states for the tensors of its lists.

A step that is traced for its batch length states shapes such as `[9, 4]` for the tensors of a `tf.TensorArray` or of a
loop's history, and each worker stores tensors of its share. A shape with an unknown length admits both. Ops that take
tensors from a list state their shape once more, which the rules of these ops convert.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from parallax.base.types import GraphDef
from parallax.graph.batches import full_length
from parallax.graph.view import node_of, tensor_name

_STATED_INPUT = {"EmptyTensorList": 0, "TensorListReserve": 0, "TensorListFromTensor": 1}
"""Op that makes a list -> its input number of the shape of the list's tensors."""
_SUFFIX = "open_shape"


def open_list_shapes(graph_def: GraphDef) -> GraphDef:
    """A copy of the graph whose lists accept any length where one is a multiple of a batch; the graph itself if none.

    Args:
        graph_def: of a front end, without calls, conditionals and loops.
    """
    lengths = {length for node in graph_def.node if (length := full_length(node)) > 0}
    makers = [node for node in graph_def.node if node.op in _STATED_INPUT]
    if not lengths or not makers:
        return graph_def
    nodes = {node.name: node for node in graph_def.node}
    shapes: dict[str, str] = {}
    out = graph_pb2.GraphDef()
    out.CopyFrom(graph_def)
    for node in [one for one in out.node if one.op in _STATED_INPUT]:
        slot = _STATED_INPUT[node.op]
        source = nodes[node_of(tensor_name(node.input[slot]))]
        if source.op != "Const":
            continue
        stated = tf.make_ndarray(source.attr["value"].tensor)
        is_of_batch = np.any([(stated > 0) & (stated % length == 0) for length in lengths], 0)
        if not is_of_batch.any():
            continue
        if source.name not in shapes:
            shapes[source.name] = f"{source.name}/{_SUFFIX}"
            constant = out.node.add()
            constant.CopyFrom(source)
            constant.name = shapes[source.name]
            constant.attr["value"].tensor.CopyFrom(
                tf.make_tensor_proto(np.where(is_of_batch, -1, stated), stated.dtype)
            )
        node.input[slot] = shapes[source.name]
    return out
