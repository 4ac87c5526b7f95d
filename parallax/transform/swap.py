"""Adds the graph of another plan to the running session's graph; nodes that both plans share exist once.

State that a session keeps between runs is bound to its nodes: the position of a dataset's iterator, the contents of
queues and lookup tables, the counters of random ops, variables. So another plan's graph does not get a session of its
own. Its unchanged nodes, with all their inputs, are those already running; all others are added under
`parallax/plan_NUMBER/`, and read shared tensors from the running nodes. Added nodes are

- a variable that the new plan stores elsewhere, for its rows must be moved,
- nodes that the transform made, so that collectives have the same names on all workers, even where they are equal on
  one of them; except gates, which their key describes in full (passes/turns.py),
- nodes that differ in any attribute or input,

and all nodes that read one of these or wait for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tensorflow.python.framework import op_def_registry

from parallax.base.errors import TransformError
from parallax.base.types import GraphDef, NodeDef, OpDef
from parallax.graph.ops import takes_seeds
from parallax.graph.view import VARIABLES, node_of, split_tensor
from parallax.transform.building.editor import SCOPE, GradientAccumulation
from parallax.transform.passes.random_seeds import mix_seed
from parallax.transform.passes.turns import SCOPE as TURNS
from parallax.transform.pipeline import WorkerGraph

_PREFIX = re.compile(rf"{SCOPE}/plan_\d+/")
_OF_ONE_RUN = ("TensorArray", "Stack", "TemporaryVariable")
"""Prefixes of the types of ops whose state does not outlive a run."""
_WITHOUT_HANDLE = ("Stage", "Unstage", "MapStage", "MapUnstage", "OrderedMapStage", "OrderedMapUnstage", "Barrier")
_RESOURCE = 20  # TensorFlow's number of the type of handles
_NAMED = 5  # the number of ops that a message lists


@dataclass(frozen=True, slots=True)
class SwappedGraph:
    """Another plan's graph in a running session.

    A random op whose shape depends on pulled rows restarts with another seed, so as not to repeat its numbers; one with
    a constant shape, or with its position in a variable (passes/random_positions.py), continues. An op that keeps
    state between runs in another way and reads a changed node (`Stage`) is refused by name.

    Attributes:
        worker_graph: of the new plan. Tensors and ops to be run have their names in the session; lookups by the user's
            names keep these.
        names: node as named by the transform -> node in the session, for those whose names differ.
        added: GraphDef of the nodes that are not yet in the session.
        redrawn: random ops that restart, as their inputs have changed.
    """

    worker_graph: WorkerGraph
    names: Mapping[str, str]
    added: GraphDef
    redrawn: tuple[str, ...]


def as_planned(name: str) -> str:
    """The name that the transform gave to a node or tensor of a session."""
    return _PREFIX.sub("", name, count=1) if name.startswith(f"{SCOPE}/plan_") else name


def renamed_tensor(tensor: str, names: Mapping[str, str]) -> str:
    """The name of a tensor or node in the session."""
    if ":" not in tensor:
        return names.get(tensor, tensor)
    node, number = split_tensor(tensor)
    return f"{names[node]}:{number}" if node in names else tensor


def list_stored_elsewhere(running: WorkerGraph, new: WorkerGraph) -> frozenset[str]:
    """The variable ops of which any worker has other rows in the new plan."""
    return frozenset(
        op
        for op in running.spread.keys() | new.spread.keys() | running.on_servers | new.on_servers
        if running.spread.get(op) != new.spread.get(op) or (op in running.on_servers) != (op in new.on_servers)
    )


def add_plan(running: WorkerGraph, names: Mapping[str, str], new: WorkerGraph, number: int) -> SwappedGraph:
    """Adds a new plan's graph to the running one.

    Args:
        running: the graph of the current plan, as the transform made it.
        names: node of it -> node in the session, for those whose names differ.
        new: the graph of the new plan.
        number: the plan's number in this session; every number is used once.

    Raises:
        TransformError: when state of an op would be lost; the message names it.
    """
    changed = _find_changed(running, new)
    nodes = {node.name: node for node in new.graph_def.node}
    _check_state(new, changed)
    prefix = f"{SCOPE}/plan_{number}/"
    here = {name: prefix + name if name in changed else names.get(name, name) for name in nodes}
    here = {name: there for name, there in here.items() if name != there}
    whole, added = type(new.graph_def)(), type(new.graph_def)()
    for graph_def in (whole, added):
        graph_def.versions.CopyFrom(new.graph_def.versions)
    redrawn = []
    known = {function.signature.name: function for function in running.graph_def.library.function}
    for function in new.graph_def.library.function:
        whole.library.function.add().CopyFrom(function)
        if function.signature.name not in known:
            added.library.function.add().CopyFrom(function)
    whole.library.gradient.extend(new.graph_def.library.gradient)
    for name, node in nodes.items():
        copy = whole.node.add()
        copy.CopyFrom(node)
        _rename(copy, here)
        if name not in changed:
            continue
        if takes_seeds(node):
            copy.attr["seed2"].i = mix_seed(node.attr["seed2"].i, copy.name, 0)  # the first numbers have been drawn
            redrawn.append(name)
        _separate_state(copy, name, prefix)
        _forget_places_outside(added.node.add(), copy, prefix)
    return SwappedGraph(_in_session(new, whole, here), here, added, tuple(sorted(redrawn)))


def _find_changed(running: WorkerGraph, new: WorkerGraph) -> set[str]:
    """The nodes of the new graph that cannot be shared with the running one."""
    before = {node.name: node for node in running.graph_def.node}
    elsewhere = list_stored_elsewhere(running, new)
    unchanged = _find_unchanged_partitions(running, new, before)
    functions = {function.signature.name: function for function in running.graph_def.library.function}
    odd = {f.signature.name for f in new.graph_def.library.function if functions.get(f.signature.name, f) != f}
    if odd:
        raise TransformError(f"A function must be the same by every plan, and {min(odd)!r} is not.")
    takers: dict[str, list[str]] = {}
    for node in new.graph_def.node:
        for name in node.input:
            takers.setdefault(node_of(name), []).append(node.name)
    prefix = f"{SCOPE}/"
    waiting = [
        node.name
        for node in new.graph_def.node
        if (node.name.startswith(prefix) and node.name not in unchanged and not node.name.startswith(f"{TURNS}/"))
        or node.name in elsewhere
        or before.get(node.name) != node
    ]
    nodes = {node.name: node for node in new.graph_def.node}
    changed: set[str] = set()
    while waiting:
        while waiting:
            name = waiting.pop()
            if name not in changed:
                changed.add(name)
                waiting += takers.get(name, ())
        # A node without outputs cannot be referenced from outside when nodes are added: its dependents get a copy.
        waiting = [
            node_of(name)
            for node in changed
            for name in nodes[node].input
            if name.startswith("^") and node_of(name) not in changed and not _gives(nodes[node_of(name)])
        ]
    return changed


def _find_unchanged_partitions(running: WorkerGraph, new: WorkerGraph, before: Mapping[str, NodeDef]) -> frozenset[str]:
    """The partitions of variables of which servers store the same rows in both plans."""
    after = {node.name: node for node in new.graph_def.node}
    return frozenset(
        part
        for op, parts in new.partitions.items()
        if running.partitions.get(op) == parts and all(before.get(p) == after.get(p) for p in parts)
        for part in parts
    )


def _check_state(new: WorkerGraph, changed: set[str]) -> None:
    """Refuses to rebuild an op that keeps state between runs, except variables."""
    lost = [
        node.name
        for node in new.graph_def.node
        if node.name in changed and not node.name.startswith(f"{SCOPE}/") and _keeps_state(node)
    ]
    if lost:
        more = f" and {len(lost) - _NAMED} more" if len(lost) > _NAMED else ""
        raise TransformError(
            "The plan cannot be changed in this session, because ops that keep state between runs depend on variables "
            f"that the new plan moves: {', '.join(sorted(lost)[:_NAMED])}{more}. Give the better plan to the job when "
            "it starts."
        )


def _keeps_state(node: NodeDef) -> bool:
    """Whether an op has state that is bound to its node's name."""
    if node.op in VARIABLES or node.op.startswith(_OF_ONE_RUN):
        return False
    definition = _definition(node)
    if node.op in _WITHOUT_HANDLE:
        return True
    if definition is None or not definition.is_stateful:
        return False
    creates = not any(argument.type == _RESOURCE or argument.is_ref for argument in definition.input_arg)
    return creates and any(argument.type == _RESOURCE or argument.is_ref for argument in definition.output_arg)


def _definition(node: NodeDef) -> OpDef | None:
    return op_def_registry.get(node.op)


def _gives(node: NodeDef) -> bool:
    """Whether a node has an output; a call of a function counts as having one."""
    definition = _definition(node)
    return definition is None or bool(definition.output_arg)


def _rename(node: NodeDef, names: Mapping[str, str]) -> None:
    """Renames a node, its inputs and its colocation to the names in the session."""
    node.name = names.get(node.name, node.name)
    for place, name in enumerate(node.input):
        mark = "^" if name.startswith("^") else ""
        known = name.removeprefix("^")
        node.input[place] = mark + renamed_tensor(known, names)
    if "_class" in node.attr:
        places = node.attr["_class"].list.s
        for place, value in enumerate(places):
            op = value.decode().removeprefix("loc:@")
            places[place] = f"loc:@{names.get(op, op)}".encode()


def _separate_state(node: NodeDef, name: str, prefix: str) -> None:
    """Separates the state of a variable, or of a node that the transform made, from another plan's of the same name."""
    if "shared_name" not in node.attr:
        return
    if node.op in VARIABLES:
        node.attr["shared_name"].s = node.name.encode()
    elif name.startswith(f"{SCOPE}/") and node.attr["shared_name"].s:
        node.attr["shared_name"].s = prefix.encode() + node.attr["shared_name"].s


def _forget_places_outside(added: GraphDef, node: NodeDef, prefix: str) -> None:
    """Restricts the colocation of an added node to other added nodes."""
    added.CopyFrom(node)
    if "_class" in added.attr:
        inside = [p for p in added.attr["_class"].list.s if p.startswith(f"loc:@{prefix}".encode())]
        if inside:
            added.attr["_class"].list.s[:] = inside
        else:
            del added.attr["_class"]


def _in_session(new: WorkerGraph, graph_def: GraphDef, names: Mapping[str, str]) -> WorkerGraph:
    def tensors(planned: Iterable[str]) -> tuple[str, ...]:
        return tuple(renamed_tensor(name, names) for name in planned)

    return replace(
        new,
        graph_def=graph_def,
        full_tensors={name: renamed_tensor(tensor, names) for name, tensor in new.full_tensors.items()},
        cuts=tuple(replace(cut, tensor=renamed_tensor(cut.tensor, names)) for cut in new.cuts),
        fused=tuple(replace(one, members=tensors(one.members), parts=tensors(one.parts)) for one in new.fused),
        counters=tuple(replace(one, tensor=renamed_tensor(one.tensor, names)) for one in new.counters),
        roundings=tuple(
            replace(one, tensor=renamed_tensor(one.tensor, names), initializer=renamed_tensor(one.initializer, names))
            for one in new.roundings
        ),
        counter_initializers=tensors(new.counter_initializers),
        lazily_updated=tuple(tensors(members) for members in new.lazily_updated),
        full=tuple(
            replace(one, batch=renamed_tensor(one.batch, names), full=renamed_tensor(one.full, names))
            for one in new.full
        ),
        partitions={op: tensors(parts) for op, parts in new.partitions.items()},
        accumulations=tuple(
            GradientAccumulation(one.source, tensors(one.begin), tensors(one.add), tensors(one.take))
            for one in new.accumulations
        ),
    )


def outside(added: GraphDef) -> Sequence[str]:
    """The tensors of the running graph that added nodes read, and with a `^` its nodes that they wait for; sorted."""
    inside = {node.name for node in added.node}
    return sorted({name for node in added.node for name in node.input if node_of(name) not in inside})
