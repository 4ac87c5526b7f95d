"""TensorFlow 1 conditionals and loops (Switch and Merge, Enter and Exit): the contexts of each node, and frames.

A node runs only if the branches that it is in are taken: through the tensors that it reads, or through a control input,
as for constants of a branch. TensorFlow's own rule is the same: a node with a dead input is dead.

A loop is a unit of a graph: its entries, the heads of its variables, and the nodes that each iteration executes.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from parallax.base.errors import GraphError
from parallax.base.types import NodeDef
from parallax.graph.view import GraphView, node_of, once_per_view, split_tensor

SWITCHES = ("Switch", "RefSwitch")
MERGES = ("Merge", "RefMerge")
_ENTERS = ("Enter", "RefEnter")
_EXITS = ("Exit", "RefExit")
_LOOP = -1
_COMPARED = "_parallax_compared"


def mark_compared(node: NodeDef) -> None:
    """Marks a node as compared, to choose the one branch of a conditional that the graph still has."""
    node.attr[_COMPARED].b = True


def is_compared(node: NodeDef) -> bool:
    """Whether a node is so marked."""
    return _COMPARED in node.attr


class Branch(NamedTuple):
    """A branch of a conditional, or a loop.

    Attributes:
        predicate: the tensor of the decision; for a loop the name of its frame.
        taken: the value of the predicate with which the branch is taken, 0 or 1; -1 for a loop.
    """

    predicate: str
    taken: int

    @property
    def is_loop(self) -> bool:
        """Whether this is a loop's body."""
        return self.taken == _LOOP


Branches = tuple[Branch, ...]
"""From the outermost to the innermost."""


@once_per_view
def branches_of(view: GraphView) -> dict[str, Branches]:
    """For every node the branches and loops that contain it."""
    if not view.has_op((*SWITCHES, *_ENTERS)):
        return dict.fromkeys(view.nodes, ())
    branches_by_node: dict[str, Branches] = {}
    for node in view.topological_order():
        op = view.op(node)
        inputs = [
            _at(view, branches_by_node, tensor) for tensor in view.inputs(node) if node_of(tensor) in branches_by_node
        ]
        inputs += [branches_by_node[name] for name in view.controls(node) if name in branches_by_node]
        deepest = max(inputs, key=len, default=())
        if op in _ENTERS:
            deepest = (*deepest, Branch(view.nodes[node].attr["frame_name"].s.decode(), _LOOP))
        elif op in _EXITS:
            loops = [place for place, branch in enumerate(deepest) if branch.is_loop]
            deepest = deepest[: loops[-1]] if loops else deepest
        elif op in MERGES and not is_loop_merge(view, node):
            deepest = _common(inputs)
        branches_by_node[node] = deepest
    return branches_by_node


def branches_at(view: GraphView, tensor: str) -> Branches:
    """The branches and loops in which a tensor exists, including one that a Switch begins."""
    return _at(view, branches_of(view), tensor)


@once_per_view
def loop_conditions(view: GraphView) -> dict[str, str]:
    """Frame -> the tensor that decides whether its loop runs another iteration."""
    branches = branches_of(view)
    decided = ((branches[node], node) for node in view.nodes_of(["LoopCond"]))
    return {loops[-1].predicate: f"{node}:0" for found, node in decided if (loops := [b for b in found if b.is_loop])}


def is_loop_merge(view: GraphView, node: str) -> bool:
    """Whether a Merge is the head of a loop and not the end of a conditional."""
    return any(view.op(node_of(t)).endswith("NextIteration") for t in view.inputs(node))


def predicate_of(view: GraphView, switch: str) -> str:
    """The predicate tensor of a Switch, behind copies."""
    tensor = view.inputs(switch)[1]
    while view.op(node_of(tensor)) == "Identity":
        tensor = view.inputs(node_of(tensor))[0]
    return tensor


def _at(view: GraphView, branches_by_node: dict[str, Branches], tensor: str) -> Branches:
    """The branches in which a tensor exists: those of its node, and one more behind a Switch."""
    node, number = split_tensor(tensor)
    if view.op(node) not in SWITCHES:
        return branches_by_node[node]
    predicate = predicate_of(view, node)
    if view.op(node_of(predicate)) == "LoopCond":
        return branches_by_node[node]
    return (*branches_by_node[node], Branch(predicate, number))


def _common(inputs: list[Branches]) -> Branches:
    """The common prefix of all, from the outermost on."""
    common = inputs[0] if inputs else ()
    for other in inputs[1:]:
        same = [a == b for a, b in zip(common, other, strict=False)]
        common = common[: same.index(False) if False in same else len(same)]
    return common


@dataclass(frozen=True, slots=True)
class LoopFrame:
    """A TensorFlow 1 loop.

    Attributes:
        name: TensorFlow's name of the frame.
        enters: the ops by which tensors enter.
        heads: the Merges of the loop's variables, each of the initial value and the result of the last iteration.
        units: the nodes that each iteration executes, in topological order; an inner loop is one of them.
        nodes: all of its nodes, including those of inner loops.
    """

    name: str
    enters: tuple[str, ...]
    heads: tuple[str, ...]
    units: tuple[Unit, ...]
    nodes: frozenset[str]


Unit = str | LoopFrame
"""A node, or a loop."""


def units_of(view: GraphView, order: Sequence[str]) -> tuple[Unit, ...]:
    """The nodes with every loop as one unit, in topological order.

    Args:
        view: the graph.
        order: the nodes, in topological order.
    """
    branches_by_node = branches_of(view)
    loops = {node: tuple(branch.predicate for branch in branches_by_node[node] if branch.is_loop) for node in order}
    return _group(view, order, loops, 0)


def _group(view: GraphView, order: Sequence[str], loops: Mapping[str, tuple[str, ...]], depth: int) -> tuple[Unit, ...]:
    """The nodes of one loop, or of none, with the loops inside as units."""
    inside: dict[str, list[str]] = {}
    for node in order:
        if len(loops[node]) > depth:
            inside.setdefault(loops[node][depth], []).append(node)
    if not inside:
        return tuple(order)
    key_of = {node: name for name, nodes in inside.items() for node in nodes}
    members = {node: [node] for node in order if node not in key_of} | inside
    place = {node: number for number, node in enumerate(order)}
    users: dict[str, set[str]] = {key: set() for key in members}
    missing: dict[str, int] = {}
    for key, nodes in members.items():
        needed = {key_of.get(one, one) for node in nodes for one in _find_needed(view, node) if one in place} - {key}
        missing[key] = len(needed)
        for one in needed:
            users[one].add(key)
    ready = [(place[members[key][0]], key) for key, count in missing.items() if not count]
    heapq.heapify(ready)
    units: list[Unit] = []
    while ready:
        key = heapq.heappop(ready)[1]
        units.append(_frame(view, key, members[key], loops, depth) if key in inside else key)
        for user in users[key]:
            missing[user] -= 1
            if not missing[user]:
                heapq.heappush(ready, (place[members[user][0]], user))
    if len(units) < len(members):
        name = next(key for key in inside if missing[key])
        raise GraphError(f"An input of the loop {name!r} depends on a result of the same loop.")
    return tuple(units)


def _frame(
    view: GraphView, name: str, nodes: Sequence[str], loops: Mapping[str, tuple[str, ...]], depth: int
) -> LoopFrame:
    frame_nodes = [node for node in nodes if len(loops[node]) == depth + 1]
    enters = tuple(node for node in frame_nodes if view.op(node) in _ENTERS)
    heads = tuple(node for node in frame_nodes if view.op(node) in MERGES and is_loop_merge(view, node))
    begun = {*enters, *heads}
    units = _group(view, [node for node in nodes if node not in begun], loops, depth + 1)
    return LoopFrame(name, enters, heads, units, frozenset(nodes))


def _find_needed(view: GraphView, node: str) -> list[str]:
    return [*(node_of(tensor) for tensor in view.inputs(node)), *view.controls(node)]
