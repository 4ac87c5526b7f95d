"""All-reduces that can begin at about the same time travel as one message.

Every message costs rounds that wait for each other, so small tensors go together, in the order in which the graph gives
them, until they make a message; large ones go alone, as soon as they are there. What is joined is fixed here, the same
on all workers, so nothing is agreed on in a step, and sums have one order in every run. Only such are joined as no path
leads from one to another: their *level*, the number of all-reduces before them one after the other, is the same. The
graph stays without circles, as every path from an all-reduce leads to higher levels.

Each that was joined stays as an Identity, under its name, of its part of the result. A run that needs some of them only
feeds the parts of the others with nothing: `view_apart` is the graph in which each still depends on its own part alone,
by which it is told what a run needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from parallax.base.types import GraphDef, NodeDef
from parallax.graph.control_flow import branches_of
from parallax.graph.view import NEXT_ITERATIONS, GraphView, split_tensor, tensor_name
from parallax.plans.sum_methods import MESSAGE_BYTES
from parallax.transform.building.all_to_all import ALL_REDUCE

_SCOPE = "parallax/joined"


@dataclass(frozen=True, slots=True)
class JoinedMessage:
    """All-reduces that travel together.

    Attributes:
        members: the nodes that were all-reduces, now Identities.
        parts: for each the tensor that this worker gives, which may be fed with nothing.
        dtype: numpy name of the element type.
    """

    members: tuple[str, ...]
    parts: tuple[str, ...]
    dtype: str


def join_all_reduces(graph_def: GraphDef) -> tuple[JoinedMessage, ...]:
    """Joins the small all-reduces of a worker's graph, which is changed."""
    found = [node for node in graph_def.node if node.op == ALL_REDUCE and _size(node) is not None]
    if len(found) < 2:
        return ()
    messages = list(_messages(GraphView(graph_def), found))
    return tuple(_join(graph_def, members, f"{_SCOPE}_{number}") for number, members in enumerate(messages))


def _size(node: NodeDef) -> int | None:
    """Bytes that an all-reduce sends; None where its shape is open."""
    elements = node.attr["elements"].i
    return None if elements < 0 else int(elements * tf.as_dtype(node.attr["T"].type).size)


def _messages(view: GraphView, found: list[NodeDef]) -> Iterator[list[NodeDef]]:
    """Those that are joined, of two or more each."""
    levels, places = _levels_and_places(view)
    branches = branches_of(view)
    alike: dict[tuple[Any, ...], list[NodeDef]] = {}
    for node in sorted(found, key=lambda one: places[one.name]):
        if not branches[node.name]:  # one of a conditional may not be run at all
            key = (node.attr["T"].type, node.attr["kind"].s, node.attr["among"].s, levels[node.name])
            alike.setdefault(key, []).append(node)
    for nodes in alike.values():
        message: list[NodeDef] = []
        filled = 0
        for node in nodes:
            size = _size(node) or 0
            if size < MESSAGE_BYTES:
                message.append(node)
                filled += size
            if filled >= MESSAGE_BYTES:
                yield from (message,) if len(message) > 1 else ()
                message, filled = [], 0
        yield from (message,) if len(message) > 1 else ()


def _levels_and_places(view: GraphView) -> tuple[dict[str, int], dict[str, int]]:
    """For every node how many all-reduces are before it, one after the other, and how late the user's graph gives it.

    TensorFlow adds nodes in the order in which they can run, gradients from the last layer to the first. What a
    transform adds is as late as what it takes.
    """
    branches = branches_of(view)
    counted = {name for name in view.nodes_of([ALL_REDUCE]) if not branches[name]}
    order = view.topological_order()
    levels: dict[str, int] = dict.fromkeys(order, 0)
    behind: dict[str, int] = {}  # the levels of what takes a node, where these are not 0
    reached = view.descendants(counted, waits=True)
    after = [node for node in order if node in reached]
    is_changed = True
    while is_changed:  # a second time only where a loop's end has another level than its head
        is_changed = False
        for node in after:
            level = max([behind[name] for name in view.nodes_before(node) if name in behind], default=0)
            if level != levels[node]:
                is_changed = is_changed or view.op(node) in NEXT_ITERATIONS
                levels[node] = level
            if level or node in counted:
                behind[node] = level + (node in counted)
    places: dict[str, int] = {}
    for number, node in enumerate(order):
        is_users = not node.startswith("parallax/")
        places[node] = number if is_users else max([places.get(name, 0) for name in view.nodes_before(node)], default=0)
    return levels, places


def _join(graph_def: GraphDef, members: list[NodeDef], name: str) -> JoinedMessage:
    dtype, parts = members[0].attr["T"], []
    joined = graph_def.node.add(op=ALL_REDUCE, name=name)
    for key in ("T", "kind", "among"):
        joined.attr[key].CopyFrom(members[0].attr[key])
    joined.attr["scales"].list.f.extend(one.attr["scales"].list.f[0] for one in members)
    joined.attr["N"].i = len(members)
    joined.attr["elements"].i = sum(one.attr["elements"].i for one in members)
    for number, member in enumerate(members):
        # What a member waits for, its part does: nobody waits for it where the part is fed.
        part = graph_def.node.add(op="PlaceholderWithDefault", name=f"{name}/part_{number}", input=member.input)
        part.attr["dtype"].CopyFrom(dtype)
        part.attr["shape"].shape.unknown_rank = True
        joined.input.append(part.name)
        parts.append(f"{part.name}:0")
        member.op = "Identity"
        member.input[:] = [f"{name}:{number}"]
        for key in [key for key in member.attr if key != "T"]:
            del member.attr[key]
    return JoinedMessage(tuple(one.name for one in members), tuple(parts), tf.as_dtype(dtype.type).name)


def members_of(graph_def: GraphDef) -> dict[str, str]:
    """Each all-reduce that was joined, and the tensor that this worker gives for it."""
    joined = {node.name: node.input for node in graph_def.node if node.op == ALL_REDUCE and node.attr["N"].i > 1}
    found = {}
    for node in graph_def.node if joined else ():
        if node.op == "Identity":
            name, number = split_tensor(tensor_name(node.input[0]))
            if name in joined:
                found[node.name] = tensor_name(joined[name][number])
    return found


def view_apart(graph_def: GraphDef) -> GraphView:
    """The graph in which each joined all-reduce takes its own part."""
    return GraphView(graph_def, {member: (part,) for member, part in members_of(graph_def).items()})
