"""Where the nodes of a graph run that is cut into stages, as far as a few of them say it.

What must be together is a *block* (blocks.py). A block of which no node has a place yet goes where most bytes of what
it takes are: where they are made, or where another node has had them sent. A block that takes nothing with a place, as
the draw of an initial value, goes to whoever takes it first. What is `everywhere` has no place: each stage makes it.
"""

from __future__ import annotations

from collections.abc import Mapping

from parallax.graph.cut.graph_to_cut import GraphToCut
from parallax.graph.view import split_tensor


def complete_places(graph: GraphToCut, known: Mapping[str, int]) -> dict[str, int]:
    """The stage of every node that is not everywhere.

    Args:
        graph: the graph.
        known: node -> stage; of nodes of one block the first in order counts.
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
    """The stage that has most bytes of what a node takes, the first of several; None where it takes nothing placed."""
    weights: dict[int, int] = {}
    for tensor in dict.fromkeys(graph.sent_inputs(node)):
        source = by_block.get(graph.block(split_tensor(tensor)[0]))
        for stage in there.get(tensor, set() if source is None else {source}):
            weights[stage] = weights.get(stage, 0) + max(1, graph.size_bytes.get(tensor, 1))
    return min(weights, key=lambda stage: (-weights[stage], stage)) if weights else None


def _settle(
    graph: GraphToCut, node: str, stage: int, by_block: dict[str, int], members: Mapping[str, list[str]]
) -> None:
    """Gives the blocks without a place that a node takes, and those that they take, the node's own place."""
    waiting = [node]
    while waiting:
        for tensor in graph.sent_inputs(waiting.pop()):
            block = graph.block(split_tensor(tensor)[0])
            if block not in by_block:
                by_block[block] = stage
                waiting += members[block]
