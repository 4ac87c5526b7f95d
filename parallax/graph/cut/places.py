"""Completes the assignment of a cut graph's nodes to stages from that of a few nodes.

Nodes that must be together form a *block* (blocks.py). A block goes where most bytes of its inputs are: where they are
computed, or where another node has already received them. The blocks with the most bytes are assigned first, so that a
scalar of another stage, which may come earlier in the graph, does not draw a sum of gradients there. A block without
assigned inputs, such as the draw of an initial value, goes to its first consumer. Nodes `everywhere` have no stage:
each stage has them.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping

from parallax.graph.cut.graph_to_cut import GraphToCut
from parallax.graph.view import node_of


def complete_places(graph: GraphToCut, known: Mapping[str, int]) -> dict[str, int]:
    """The stage of every node that does not exist on each stage.

    Args:
        graph: the graph.
        known: node -> stage; among nodes of one block the first in order counts.
    """
    places = _Places(graph)
    for node in graph.order:
        if node in known and graph.block(node) not in places.by_block:
            places.assign(graph.block(node), known[node])
    places.follow_bytes()
    while places.assign_sources():
        places.follow_bytes()
    return {node: places.by_block.get(graph.block(node), 0) for node in graph.order if node not in graph.everywhere}


class _Places:
    """The assigned blocks of a graph, and the bytes by which others are drawn to stages."""

    def __init__(self, graph: GraphToCut) -> None:
        self.by_block: dict[str, int] = {}
        self._graph = graph
        self._members: dict[str, list[str]] = {}
        self._takers: dict[str, dict[str, None]] = {}  # tensor -> the blocks that it is sent to, if their stage differs
        self._number: dict[str, int] = {}
        for node in graph.order:
            if node in graph.everywhere:
                continue
            block = graph.block(node)
            self._number.setdefault(block, len(self._number))
            self._members.setdefault(block, []).append(node)
            for tensor in graph.sent_inputs(node):
                if graph.block(node_of(tensor)) != block:
                    self._takers.setdefault(tensor, {})[block] = None
        self._outputs: dict[str, list[str]] = {}
        for tensor in self._takers:
            self._outputs.setdefault(graph.block(node_of(tensor)), []).append(tensor)
        self._weights: dict[str, dict[int, int]] = {}  # block without a stage -> bytes of its inputs by stage
        self._there: dict[str, set[int]] = {}  # tensor -> the stages that have it
        self._queue: list[tuple[int, int, str]] = []

    def assign(self, block: str, stage: int) -> None:
        """Assigns a block, which draws the takers of its outputs to its stage, and those of its inputs."""
        self.by_block[block] = stage
        for tensor in self._outputs.get(block, ()):
            self._draw(tensor, stage)
        for tensor in self._inputs(block):
            if self._graph.block(node_of(tensor)) in self.by_block:
                self._draw(tensor, stage)

    def follow_bytes(self) -> None:
        """Assigns the blocks that have an assigned input, those with most bytes on one stage first."""
        while self._queue:
            weight, _, block = heapq.heappop(self._queue)
            weights = self._weights[block]
            stage = min(weights, key=lambda one: (-weights[one], one))
            if block not in self.by_block and -weight == weights[stage]:
                self.assign(block, stage)

    def assign_sources(self) -> bool:
        """Assigns blocks without assigned inputs to the stage of their first consumer; tells whether there were any."""
        found = False
        for node in self._graph.order:
            waiting = [self._graph.block(node)] if self._graph.block(node) in self.by_block else []
            while waiting:
                taker = waiting.pop()
                for tensor in self._inputs(taker):
                    block = self._graph.block(node_of(tensor))
                    if block not in self.by_block:
                        self.assign(block, self.by_block[taker])
                        waiting.append(block)
                        found = True
        return found

    def _inputs(self, block: str) -> Iterator[str]:
        """The tensors that a block takes from others."""
        for node in self._members.get(block, ()):
            for tensor in self._graph.sent_inputs(node):
                if self._graph.block(node_of(tensor)) != block:
                    yield tensor

    def _draw(self, tensor: str, stage: int) -> None:
        """Records that a stage has a tensor."""
        there = self._there.setdefault(tensor, set())
        if stage in there:
            return
        there.add(stage)
        for block in self._takers[tensor]:
            if block in self.by_block:
                continue
            weights = self._weights.setdefault(block, {})
            weights[stage] = weights.get(stage, 0) + max(1, self._graph.size_bytes.get(tensor, 1))
            heapq.heappush(self._queue, (-weights[stage], self._number[block], block))
