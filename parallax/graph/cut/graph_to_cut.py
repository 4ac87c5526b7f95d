"""A graph in the form for cutting: inputs and consumers, nodes without a stage, and sizes of tensors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from parallax.graph.cut.blocks import blocks_of
from parallax.graph.view import GraphView, Shape, node_of

_BYTES = 4  # of an element whose type has no size


@dataclass(frozen=True, slots=True)
class GraphToCut:
    """A graph in the form for cutting.

    Attributes:
        order: its nodes, each after its inputs.
        inputs: node -> its input tensors.
        controls: node -> its control inputs.
        everywhere: nodes that exist on each stage.
        blocks: node -> the name of its block, for nodes that share one with others.
        size_bytes: tensor -> bytes, where its size is known.
    """

    order: tuple[str, ...]
    inputs: Mapping[str, tuple[str, ...]]
    controls: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    everywhere: frozenset[str] = frozenset()
    blocks: Mapping[str, str] = field(default_factory=dict)
    size_bytes: Mapping[str, int] = field(default_factory=dict)

    def block(self, node: str) -> str:
        """The block of a node."""
        return self.blocks.get(node, node)

    def sent_inputs(self, node: str) -> Iterator[str]:
        """The inputs of a node that are computed by nodes of a stage."""
        return (tensor for tensor in self.inputs[node] if node_of(tensor) not in self.everywhere)


def graph_to_cut(view: GraphView, everywhere: frozenset[str], order: Sequence[str]) -> GraphToCut:
    """A graph, or a closed part of it, in the form for cutting.

    Args:
        view: the graph.
        everywhere: nodes that exist on each stage.
        order: the nodes, each after its inputs.
    """
    return GraphToCut(
        order=tuple(order),
        inputs={node: view.inputs(node) for node in order},
        controls={node: view.controls(node) for node in order},
        everywhere=everywhere,
        blocks=blocks_of(view, order, everywhere),
        size_bytes={
            tensor: size_bytes(view, tensor) for tensor in {one for node in order for one in view.inputs(node)}
        },
    )


def elements_of(shape: Shape) -> int:
    """The number of elements of a shape; an open length, such as that of a batch, counts as 1."""
    return math.prod(length or 1 for length in shape) if shape is not None else 1


def size_bytes(view: GraphView, tensor: str) -> int:
    """Bytes of a tensor, for one example where the batch is open."""
    return elements_of(view.shape(tensor)) * bytes_of_type(view.dtype(tensor))


@cache
def bytes_of_type(dtype: int) -> int:
    """Bytes of an element of a type, by TensorFlow's number of types."""
    from tensorflow import as_dtype

    return int(as_dtype(dtype).size or _BYTES)
