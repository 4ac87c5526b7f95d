"""Counts the bytes of a stage's tensors that are alive while it computes one micro-batch.

The nodes run in the order of the graph, the forward pass first. A tensor is alive from the op that makes it, or from
the first that takes it where it is fed or received, to the last that takes it. Ops that are no product write into the
memory of an input that ends with them, as most kernels do. Of a graph whose batch is open, tensors that contain it are
counted, for one example; otherwise all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from parallax.analysis.cut.forward_pass import VARIABLES
from parallax.analysis.cut.op_costs import is_product
from parallax.graph.cut.graph_to_cut import size_bytes
from parallax.graph.view import GraphView, split_tensor

_ALIASES = ("Identity", "Reshape", "Squeeze", "ExpandDims", "StopGradient", "PreventGradient", "Snapshot")
_LENGTHS = ("Shape", "ShapeN", "Size", "Rank")
"""These run as soon as their input is there, in the backward pass too, and keep nothing alive."""
_LASTING = (*VARIABLES, "ReadVariableOp", "Const")


@dataclass(frozen=True, slots=True)
class LiveBytes:
    """Bytes of the tensors of one micro-batch on a stage, for one example where the batch is open.

    Attributes:
        kept: after the forward pass, for the backward pass.
        most: at any time.
    """

    kept: int
    most: int


def count_live_bytes(view: GraphView, forward: Sequence[str], backward: Sequence[str]) -> LiveBytes:
    """The bytes of a stage.

    Args:
        view: the graph.
        forward: the stage's nodes of the forward pass, in an order in which they can run.
        backward: those of the backward pass.
    """
    memory = _Memory(view, {*forward, *backward})
    for node in forward:
        memory.run(node)
    kept = memory.alive
    for node in backward:
        memory.run(node)
    return LiveBytes(kept, memory.most)


@dataclass(slots=True)
class _Memory:
    """The memory of a stage while its nodes run.

    Attributes:
        view: the graph.
        nodes: the stage's.
        alive: bytes in use.
        most: the most so far.
    """

    view: GraphView
    nodes: Collection[str]
    alive: int = 0
    most: int = 0
    _has_open: bool = field(init=False)
    _takers: dict[str, set[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        made = [tensor for node in self.nodes for tensor in self.view.outputs(node)]
        self._has_open = any(map(self._is_open, made))

    def run(self, node: str) -> None:
        """Runs a node: its outputs become alive, and inputs that nothing else takes end."""
        if self.view.op(node) in (*_ALIASES, *_LENGTHS):
            return
        inputs = {tensor for taken in self.view.inputs(node) if self._is_counted(tensor := self._root(taken))}
        outputs = [tensor for tensor in self.view.outputs(node) if self._is_counted(tensor)]
        for tensor in (*inputs, *outputs):
            if tensor not in self._takers:
                self._takers[tensor] = set(self._find_takers(tensor))
                self.alive += size_bytes(self.view, tensor)
        ended = [tensor for tensor in inputs if self._takers[tensor] <= {node}]
        shared = 0 if is_product(self.view, node) else sum(self._reused(ended, outputs))
        self.most = max(self.most, self.alive - shared)
        for tensor in inputs:
            self._takers[tensor].discard(node)
        self.alive -= sum(size_bytes(self.view, tensor) for tensor in ended)
        self.alive -= sum(size_bytes(self.view, tensor) for tensor in outputs if not self._takers[tensor])

    def _reused(self, ended: Sequence[str], outputs: Sequence[str]) -> Iterator[int]:
        """The bytes of outputs that are written into the memory of inputs."""
        free = [size_bytes(self.view, tensor) for tensor in ended]
        for size in (size_bytes(self.view, tensor) for tensor in outputs):
            if size in free:
                free.remove(size)
                yield size

    def _find_takers(self, tensor: str) -> Iterator[str]:
        """The stage's nodes that take a tensor, also through ops that share its memory."""
        for edge in self.view.consumers(tensor):
            if edge.node not in self.nodes or self.view.op(edge.node) in _LENGTHS:
                continue
            if self.view.op(edge.node) in _ALIASES:
                yield from self._find_takers(f"{edge.node}:0")
            else:
                yield edge.node

    def _root(self, tensor: str) -> str:
        """The tensor in whose memory another one is."""
        node, _ = split_tensor(tensor)
        while self.view.op(node) in _ALIASES and node in self.nodes:
            tensor = self.view.inputs(node)[0]
            node, _ = split_tensor(tensor)
        return tensor

    def _is_counted(self, tensor: str) -> bool:
        if self.view.op(split_tensor(tensor)[0]) in _LASTING:
            return False
        return self._is_open(tensor) if self._has_open else True

    def _is_open(self, tensor: str) -> bool:
        shape = self.view.shape(tensor)
        return shape is not None and any(length is None for length in shape)
