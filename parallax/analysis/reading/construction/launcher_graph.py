"""The launcher's graph in the workers: packed by the launcher, stored by each worker next to the graph that it built.

All readers of a worker's graph use `export_graph`: it returns the launcher's nodes and functions, with the launcher's
values, followed by nodes added to the graph since. Large constants are not sent: a worker that built an equal value
uses its local one.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from tensorflow.core.framework import graph_pb2

from parallax.analysis.reading.construction.digests import (
    SHAPES,
    first_difference,
    function_names,
    has_value,
    value_digest,
)
from parallax.base.types import Graph, GraphDef, TensorProto

_ATTRIBUTE = "_parallax_launcher_graph"
_DIGEST = "_parallax_value"
LARGE_BYTES = 4096
"""Constants of this size or more are left out of the packed graph. Constants that rules read (axes, shapes) are
smaller.
"""


@dataclass(frozen=True, slots=True)
class LauncherGraph:
    """The launcher's graph as received.

    Attributes:
        graph_def: GraphDef without the values of large constants.
        digests: name of each large constant -> digest of its value.
        others: name of a large constant -> TensorProto, where the worker's own value is not used.
    """

    graph_def: GraphDef
    digests: Mapping[str, str] = field(default_factory=dict)
    others: Mapping[str, TensorProto] = field(default_factory=dict)


def pack_graph(graph: Graph, large_bytes: float = LARGE_BYTES) -> bytes:
    """The serialized graph: compressed, with digests for the values of constants of `large_bytes` and more.

    Args:
        graph: a tf.Graph.
        large_bytes: infinite for the graph with all its values.
    """
    graph_def = graph.as_graph_def(add_shapes=True)
    for node in graph_def.node:
        if has_value(node) and node.attr["value"].tensor.ByteSize() >= large_bytes:
            tensor = node.attr["value"].tensor
            digest, dtype, shape = value_digest(node), tensor.dtype, type(tensor.tensor_shape)()
            shape.CopyFrom(tensor.tensor_shape)
            tensor.Clear()
            tensor.dtype = dtype
            tensor.tensor_shape.CopyFrom(shape)
            node.attr[_DIGEST].s = digest.encode()
    return zlib.compress(graph_def.SerializeToString(deterministic=True))


def unpack_graph(data: bytes) -> LauncherGraph:
    """Unpacks the output of `pack_graph`."""
    graph_def = graph_pb2.GraphDef()
    graph_def.ParseFromString(zlib.decompress(data))
    digests = {}
    for node in graph_def.node:
        if _DIGEST in node.attr:
            digests[node.name] = node.attr[_DIGEST].s.decode()
            del node.attr[_DIGEST]
    return LauncherGraph(graph_def, digests)


def pin_packed(graph: Graph, data: bytes) -> None:
    """Calls `pin_graph` with a graph that `pack_graph` has packed in full; does nothing where the structure differs."""
    launcher = unpack_graph(data)
    if first_difference(launcher.graph_def, graph.as_graph_def(add_shapes=True)) is None:
        pin_graph(graph, launcher)


def pin_graph(graph: Graph, launcher: LauncherGraph) -> None:
    """Makes `export_graph` return the launcher's graph for this one, which must have the same structure."""
    setattr(graph, _ATTRIBUTE, launcher)


def map_functions(graph: Graph) -> dict[str, str]:
    """Name of a function of a graph -> its name in the result of `export_graph`, where the launcher's graph has it."""
    launcher: LauncherGraph | None = getattr(graph, _ATTRIBUTE, None)
    if launcher is None:
        return {}
    return function_names(launcher.graph_def, graph.as_graph_def())


def export_graph(graph: Graph, add_shapes: bool = True) -> GraphDef:
    """GraphDef of a graph for training; a new one each time.

    Args:
        graph: a tf.Graph.
        add_shapes: whether nodes have their static shapes.
    """
    local = graph.as_graph_def(add_shapes=add_shapes)
    launcher: LauncherGraph | None = getattr(graph, _ATTRIBUTE, None)
    if launcher is None:
        return local
    exported = type(local)()
    exported.CopyFrom(launcher.graph_def)
    by_name = {node.name: node for node in local.node}
    for node in exported.node:
        mine = by_name.pop(node.name)
        if not add_shapes:
            node.attr.pop(SHAPES, None)
        if node.name in launcher.digests:
            node.attr["value"].tensor.CopyFrom(launcher.others.get(node.name, mine.attr["value"].tensor))
    exported.node.extend(by_name.values())  # in the order of creation
    known = {function.signature.name for function in exported.library.function}
    exported.library.function.extend(f for f in local.library.function if f.signature.name not in known)
    return exported
