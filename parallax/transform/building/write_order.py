"""Keeps the order between a write and the ops after it, and loops and branches, where rewritten inputs have lost them.

TensorFlow stores `tf.control_dependencies` in the first ops that are created within: often a shape or a constant, and
the ops that read it follow. So it does for the loop or branch in which an op runs, if its inputs are from outside. A
node whose input is a new tensor, which is not computed from the old one, waits itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set

from parallax.base.types import GraphDef
from parallax.graph.control_flow import Branches, branches_of
from parallax.graph.ops import state_op
from parallax.graph.view import NEXT_ITERATIONS, Edge, GraphView, node_of, tensor_name

_NOTHING: frozenset[str] = frozenset()


def keep_write_order(
    changed: GraphDef,
    view: GraphView,
    edges: Iterable[Edge],
    replaced: Iterable[str],
    freed: Set[tuple[str, str]] = frozenset(),
) -> None:
    """Adds control inputs to nodes that would otherwise no longer run after a write.

    Args:
        changed: the worker's graph, which is modified.
        view: the user's graph.
        edges: the edges that read other tensors than in it.
        replaced: the nodes that compute their results otherwise.
        freed: (node, control input for which it waits no longer).
    """
    branches = branches_of(view)
    writes = _find_writes_before(view, branches, freed)
    of_nodes = {
        name: before
        for name in dict.fromkeys([*(edge.node for edge in edges), *replaced])
        if (before := _NOTHING.union(*(writes.get(node_of(tensor), _NOTHING) for tensor in view.inputs(name))))
    }
    if not of_nodes:
        return
    nodes = {node.name: node for node in changed.node}
    needed = {
        name: [] if node.op in NEXT_ITERATIONS else [node_of(tensor_name(one)) for one in node.input]
        for name, node in nodes.items()
    }
    seen = _find_writes_seen(needed, of_nodes, _NOTHING.union(*of_nodes.values()))
    for name, before in of_nodes.items():
        for write in sorted(before - seen[name]):
            if _can_wait(branches[name], branches[write]) and name not in _find_ancestors(needed, write):
                nodes[name].input.append(f"^{write}")
                needed[name].append(write)


def _can_wait(own: Branches, of_write: Branches) -> bool:
    """Whether a node may have a control input: from its own branch and iteration, or from around its branches."""
    return own[: len(of_write)] == of_write and not any(branch.is_loop for branch in own[len(of_write) :])


def _find_writes_before(
    view: GraphView, branches: Mapping[str, Branches], freed: Set[tuple[str, str]]
) -> dict[str, frozenset[str]]:
    """Node -> the control inputs, of it and of the nodes that compute it, that write state or wait for a write.

    With them are those in a loop or a branch: a node there runs only if they do.
    """
    has_written: set[str] = set()
    writes: dict[str, frozenset[str]] = {}
    for node in view.topological_order():
        nodes_before = view.nodes_before(node)
        if not has_written.isdisjoint(nodes_before) or state_op(view.op(node), len(view.inputs(node))) is not None:
            has_written.add(node)
        before = {writes[one] for one in map(node_of, view.inputs(node)) if one in writes} if writes else set()
        controls = [one for one in view.controls(node) if (node, one) not in freed]
        own = frozenset(one for one in controls if one in has_written or branches[one])
        if own or before:
            writes[node] = own.union(*before)
    return writes


def _find_writes_seen(
    needed: Mapping[str, Sequence[str]], begin: Iterable[str], writes: Set[str]
) -> dict[str, frozenset[str]]:
    """Node -> the writes on which it depends, for some nodes and all that they depend on."""
    seen: dict[str, frozenset[str]] = {}
    stack = list(begin)
    while stack:
        node = stack[-1]
        if node not in seen:
            seen[node] = _NOTHING  # as read along the back edge of a loop
            stack += [one for one in needed[node] if one not in seen]
            continue
        stack.pop()
        own = {node} & writes
        seen[node] = frozenset(own).union(*{seen[one] for one in needed[node]})
    return seen


def _find_ancestors(needed: Mapping[str, Sequence[str]], node: str) -> set[str]:
    """A node, and all nodes on which it depends."""
    ancestors, waiting = {node}, [node]
    while waiting:
        more = [one for one in needed[waiting.pop()] if one not in ancestors]
        ancestors.update(more)
        waiting += more
    return ancestors
