"""Pass: fuses all-reduces that can begin at about the same time into one message.

Every message costs rounds of latency. So small tensors are fused, in the order of the graph, until they fill a message;
large ones are sent alone, as soon as they are ready. The fusion is fixed here, the same on all workers, so nothing is
negotiated in a step, and sums have one order in every run. Only all-reduces without a path between them are fused:
their *level*, the number of all-reduces on the path before them, is the same. The graph remains acyclic, as every path
from an all-reduce leads to higher levels.

Each fused all-reduce remains, under its name, as an Identity of its part of the result. A run that needs only some of
them feeds empty tensors for the parts of the others: `unfuse_view` is the graph in which each still depends on its own
part alone, from which the dependencies of a run are computed.
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
class FusedMessage:
    """All-reduces that are fused into one message.

    Attributes:
        members: the nodes that were all-reduces, now Identities.
        parts: for each the tensor that this worker contributes, which may be fed an empty value.
        dtype: numpy name of the element type.
    """

    members: tuple[str, ...]
    parts: tuple[str, ...]
    dtype: str


def fuse_all_reduces(graph_def: GraphDef, whole: GraphDef | None = None) -> tuple[FusedMessage, ...]:
    """Fuses the small all-reduces of a worker's graph, which is modified.

    Args:
        graph_def: the graph.
        whole: the graph of all stages, if `graph_def` is one stage's: paths between all-reduces may pass through other
            stages.
    """
    all_reduces = [node for node in graph_def.node if node.op == ALL_REDUCE and _size(node) is not None]
    if len(all_reduces) < 2:
        return ()
    messages = list(_messages(GraphView(graph_def if whole is None else whole), all_reduces))
    return tuple(_fuse(graph_def, members, f"{_SCOPE}_{number}") for number, members in enumerate(messages))


def _size(node: NodeDef) -> int | None:
    """Bytes that an all-reduce sends; None where its shape is open."""
    elements = node.attr["elements"].i
    return None if elements < 0 else int(elements * tf.as_dtype(node.attr["T"].type).size)


def _messages(view: GraphView, all_reduces: list[NodeDef]) -> Iterator[list[NodeDef]]:
    """The groups of all-reduces to fuse, of two or more each."""
    levels, places = _levels_and_places(view)
    branches = branches_of(view)
    members_by_key: dict[tuple[Any, ...], list[NodeDef]] = {}
    for node in sorted(all_reduces, key=lambda one: places[one.name]):
        if not branches[node.name]:  # an all-reduce in a conditional may not run at all
            key = (node.attr["T"].type, node.attr["kind"].s, node.attr["among"].s, levels[node.name])
            members_by_key.setdefault(key, []).append(node)
    for nodes in members_by_key.values():
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
    """For every node the number of sequential all-reduces before it, and its position in the user's graph.

    TensorFlow adds nodes in an executable order, gradients from the last layer to the first. A node that the transform
    adds has the latest position of its inputs.
    """
    branches = branches_of(view)
    counted = {name for name in view.nodes_of([ALL_REDUCE]) if not branches[name]}
    order = view.topological_order()
    levels: dict[str, int] = dict.fromkeys(order, 0)
    behind: dict[str, int] = {}  # the levels of a node's consumers, where these are not 0
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


def _fuse(graph_def: GraphDef, members: list[NodeDef], name: str) -> FusedMessage:
    dtype, parts = members[0].attr["T"], []
    fused = graph_def.node.add(op=ALL_REDUCE, name=name)
    for key in ("T", "kind", "among"):
        fused.attr[key].CopyFrom(members[0].attr[key])
    fused.attr["scales"].list.f.extend(one.attr["scales"].list.f[0] for one in members)
    fused.attr["N"].i = len(members)
    fused.attr["elements"].i = sum(one.attr["elements"].i for one in members)
    for number, member in enumerate(members):
        # A member's control inputs move to its part: no op waits for them where the part is fed.
        part = graph_def.node.add(op="PlaceholderWithDefault", name=f"{name}/part_{number}", input=member.input)
        part.attr["dtype"].CopyFrom(dtype)
        part.attr["shape"].shape.unknown_rank = True
        fused.input.append(part.name)
        parts.append(f"{part.name}:0")
        member.op = "Identity"
        member.input[:] = [f"{name}:{number}"]
        for key in [key for key in member.attr if key != "T"]:
            del member.attr[key]
    return FusedMessage(tuple(one.name for one in members), tuple(parts), tf.as_dtype(dtype.type).name)


def members_of(graph_def: GraphDef) -> dict[str, str]:
    """Each fused all-reduce, and the tensor that this worker contributes to it."""
    parts_by_message = {
        node.name: node.input for node in graph_def.node if node.op == ALL_REDUCE and node.attr["N"].i > 1
    }
    message_by_member = {}
    for node in graph_def.node if parts_by_message else ():
        if node.op == "Identity":
            name, number = split_tensor(tensor_name(node.input[0]))
            if name in parts_by_message:
                message_by_member[node.name] = tensor_name(parts_by_message[name][number])
    return message_by_member


def unfuse_view(graph_def: GraphDef) -> GraphView:
    """The graph in which each fused all-reduce reads its own part."""
    return GraphView(graph_def, {member: (part,) for member, part in members_of(graph_def).items()})
