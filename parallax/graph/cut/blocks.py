"""Blocks that a cut must not split: loops, conditionals, and nodes connected by a tensor that no message can carry.

Handles, variants and strings stay in their process. In a conditional a tensor may be dead, and a loop has one for each
iteration. So the producer and the consumers of such a tensor are in one block; inputs of a loop from outside may come
from elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection

from parallax.graph.control_flow import branches_at, branches_of
from parallax.graph.view import GraphView, node_of

_TAKE_VALUES = ("SaveV2",)
"""Ops that read the values of references, of many at once."""
_HANDLE, _VARIANT, _TEXT = 20, 21, 7  # types.proto


def blocks_of(view: GraphView, nodes: Collection[str], everywhere: Collection[str] = frozenset()) -> dict[str, str]:
    """The nodes that share a block with others: node -> the block, named by its first node.

    Args:
        view: the graph.
        nodes: the nodes to group; other nodes separate those that they connect.
        everywhere: nodes that exist on each stage.
    """
    remaining = set(nodes) - set(everywhere)
    parent: dict[str, str] = {}
    branches = branches_of(view)

    def root(node: str) -> str:
        while parent.setdefault(node, node) != node:
            parent[node] = node = parent[parent[node]]
        return node

    for node in view.nodes:
        if node not in remaining:
            continue
        for tensor in view.inputs(node):
            source = node_of(tensor)
            if source in remaining and not _can_be_sent(view, tensor, node):
                parent[root(node)] = root(source)
        for control in view.controls(node):
            if control in remaining and branches[control]:
                parent[root(node)] = root(control)
    members: dict[str, list[str]] = {}
    for node in view.nodes:
        if node in parent:
            members.setdefault(root(node), []).append(node)
    return {node: nodes[0] for nodes in members.values() if len(nodes) > 1 for node in nodes}


def _can_be_sent(view: GraphView, tensor: str, taker: str) -> bool:
    """Whether a message can carry a tensor to a node."""
    if branches_at(view, tensor):
        return False
    if view.gives_reference(node_of(tensor)) and view.op(taker) not in _TAKE_VALUES:
        return False
    return view.dtype(tensor) not in (_HANDLE, _VARIANT, _TEXT)
