"""Pass: packs small tensors that one node of another stage reads into one message, such as the norms of gradients.

The sender packs them, and the receiver unpacks them. All have one type and shape and the same consumers, so no run
needs only some of them, and no op gains a dependency.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from parallax.base.types import GraphDef
from parallax.graph.cut.graph_to_cut import size_bytes
from parallax.graph.cut.messages import StageMessage
from parallax.graph.view import GraphView, tensor_name

SMALL_BYTES = 1024
"""The largest size of a tensor that is packed with others."""
_SCOPE = "parallax/stage"


@dataclass(frozen=True, slots=True)
class PackedTensors:
    """Tensors that one stage sends to another together.

    Attributes:
        tensors: in order.
        takers: the nodes that read them.
        source: the stage that sends.
        target: the stage that receives.
        dtype: their type, as TensorFlow numbers types.
        shape: of each.
        number: of the pack.
    """

    tensors: tuple[str, ...]
    takers: tuple[str, ...]
    source: int
    target: int
    dtype: int
    shape: tuple[int, ...]
    number: int

    @property
    def pack(self) -> str:
        """The node that packs them."""
        return f"{_SCOPE}/packed_{self.number}"

    @property
    def parts(self) -> str:
        """The node that unpacks them."""
        return f"{_SCOPE}/parts_{self.number}"


def find_packs(view: GraphView, messages: Sequence[StageMessage]) -> list[PackedTensors]:
    """The tensors that can travel together, two or more each.

    Args:
        view: the graph of all stages, with shapes.
        messages: the messages between stages.
    """
    tensors_by_key: dict[tuple[int, int, tuple[str, ...], int, tuple[int, ...]], list[str]] = {}
    for one in messages:
        shape = view.shape(one.tensor) if one.tensor else None
        known = () if shape is None else tuple(length for length in shape if length is not None)
        if shape is not None and len(known) == len(shape) and size_bytes(view, one.tensor) <= SMALL_BYTES:
            key = (one.source, one.target, one.takers, view.dtype(one.tensor), known)
            tensors_by_key.setdefault(key, []).append(one.tensor)
    packs = [(key, tensors) for key, tensors in tensors_by_key.items() if len(tensors) > 1]
    return [
        PackedTensors(tuple(tensors), takers, source, target, dtype, shape, number)
        for number, ((source, target, takers, dtype, shape), tensors) in enumerate(packs)
    ]


def pack(graph_def: GraphDef, packs: Sequence[PackedTensors]) -> None:
    """Adds packs to a graph of all stages, which is modified."""
    nodes = {node.name: node for node in graph_def.node}
    for one in packs:
        count = len(one.tensors)
        packed = graph_def.node.add(op="Pack", name=one.pack, input=one.tensors)
        parts = graph_def.node.add(op="Unpack", name=one.parts, input=[one.pack])
        for node, number in ((packed, "N"), (parts, "num")):
            node.attr["T"].type = one.dtype
            node.attr["axis"].i = 0
            node.attr[number].i = count
        packed.attr["_output_shapes"].list.shape.append(tf.TensorShape((count, *one.shape)).as_proto())
        parts.attr["_output_shapes"].list.shape.extend([tf.TensorShape(one.shape).as_proto()] * count)
        place = {tensor: f"{one.parts}:{number}" for number, tensor in enumerate(one.tensors)}
        for taker in one.takers:
            inputs = nodes[taker].input
            inputs[:] = [name if name.startswith("^") else place.get(tensor_name(name), name) for name in inputs]
