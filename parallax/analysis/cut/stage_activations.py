"""Measures the activations of a stage: bytes of tensors that are alive while it computes one micro-batch.

A tensor that is fed, or received from another stage, is alive from the first op that takes it. Of a graph whose batch
is open, tensors that contain it are counted, for one example; otherwise all but variables and constants.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from parallax.graph.cut.graph_to_cut import size_bytes
from parallax.graph.ops import READS_OF_SHAPES
from parallax.graph.step_memory import BufferSizes, StepMemory
from parallax.graph.view import VARIABLES, GraphView, node_of
from parallax.plans.memory import BATCH

_LASTING = (*VARIABLES, "ReadVariableOp", "Const")
"""These run as soon as their input is there, in the backward pass too, and so keep nothing alive."""
_THREADS = 2  # both products of a gradient run at a time


@dataclass(frozen=True, slots=True)
class Activations:
    """Bytes of the tensors of one micro-batch on a stage, for one example where the batch is open.

    Attributes:
        kept: after the forward pass, for the backward pass.
        most: at any time.
    """

    kept: int
    most: int


def measure_activations(view: GraphView, nodes: Sequence[str], forward: Collection[str]) -> Activations:
    """The activations of a stage.

    Args:
        view: the graph.
        nodes: the stage's, each after its inputs.
        forward: those of the forward pass.
    """
    memory = StepMemory(view, _ActivationSizes(view, nodes), nodes, holds_received=True)
    derived = set(nodes).difference(forward)
    lengths = [node for node in derived if view.op(node) in READS_OF_SHAPES]
    at_once = {node for node in lengths if not derived.intersection(view.predecessors(node))}
    kept = memory.run(_THREADS, at_once.union(forward))
    return Activations(round(kept.get(BATCH, 0)), round(max((seen.get(BATCH, 0) for seen in memory.seen), default=0)))


class _ActivationSizes(BufferSizes):
    """Sizes by static shapes."""

    def __init__(self, view: GraphView, nodes: Sequence[str]) -> None:
        super().__init__()
        self._view = view
        self._has_open = any(self._is_open(tensor) for node in nodes for tensor in view.outputs(node))

    def of(self, tensor: str) -> tuple[str, float]:
        """The kind and bytes of a tensor."""
        is_lasting = self._view.op(node_of(tensor)) in _LASTING
        is_counted = not is_lasting and (self._is_open(tensor) or not self._has_open)
        return BATCH, float(size_bytes(self._view, tensor)) if is_counted else 0.0

    def _is_open(self, tensor: str) -> bool:
        shape = self._view.shape(tensor)
        return shape is not None and any(length is None for length in shape)
