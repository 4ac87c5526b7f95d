"""Completes the assignment of a cut graph's nodes to stages from that of a few nodes.

Nodes that must be together form a *block* (blocks.py). A block without an assigned node goes where most bytes of its
inputs are: where they are computed, or where another node has already received them. A block without assigned inputs,
such as the draw of an initial value, goes to its first consumer. Nodes `everywhere` have no stage: each stage has them.
"""

from __future__ import annotations

from collections.abc import Mapping

from parallax.graph.cut.graph_to_cut import GraphToCut
from parallax.graph.view import split_tensor


def complete_places(graph: GraphToCut, known: Mapping[str, int]) -> dict[str, int]:
    """The stage of every node that does not exist on each stage.

    Args:
        graph: the graph.
        known: node -> stage; among nodes of one block the first in order counts.
    """
    by_block: dict[str, int] = {}
    for node in graph.order:
        if node in known:
            by_block.setdefault(graph.block(node), known[node])
    members: dict[str, list[str]] = {}
    for node in graph.order:
        if node not in graph.everywhere:
            members.setdefault(graph.block(node), []).append(node)
    there: dict[str, set[int]] = {}  # tensor -> the stages that have it
    for node in graph.order:
        if node in graph.everywhere:
            continue
        block = graph.block(node)
        if block not in by_block:
            stage = _heaviest(graph, node, by_block, there)
            if stage is None:
                continue
            by_block[block] = stage
        stage = by_block[block]
        _settle(graph, node, stage, by_block, members)
        for tensor in graph.sent_inputs(node):
            source = by_block[graph.block(split_tensor(tensor)[0])]
            there.setdefault(tensor, {source}).add(stage)
    return {node: by_block.get(graph.block(node), 0) for node in graph.order if node not in graph.everywhere}


def _heaviest(graph: GraphToCut, node: str, by_block: Mapping[str, int], there: Mapping[str, set[int]]) -> int | None:
    """The stage with most bytes of a node's inputs, the first of several; None where no input is assigned."""
    weights: dict[int, int] = {}
    for tensor in dict.fromkeys(graph.sent_inputs(node)):
        source = by_block.get(graph.block(split_tensor(tensor)[0]))
        for stage in there.get(tensor, set() if source is None else {source}):
            weights[stage] = weights.get(stage, 0) + max(1, graph.size_bytes.get(tensor, 1))
    return min(weights, key=lambda stage: (-weights[stage], stage)) if weights else None


def _settle(
    graph: GraphToCut, node: str, stage: int, by_block: dict[str, int], members: Mapping[str, list[str]]
) -> None:
    """Assigns the node's stage to the unassigned blocks of its inputs, and recursively to those of their inputs."""
    waiting = [node]
    while waiting:
        for tensor in graph.sent_inputs(waiting.pop()):
            block = graph.block(split_tensor(tensor)[0])
            if block not in by_block:
                by_block[block] = stage
                waiting += members[block]
