"""The order of ops in an opened graph: a new op runs after the ops that its predecessor ran after, and no others.

A script states an order by `tf.control_dependencies`. TensorFlow stores it in the first ops that are created within:
constants, and the ops of autodiff, which are those that opening a batch replaces.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set

import tensorflow as tf

from parallax.analysis.reading.construction.recorded_gradients import CapturedRecord
from parallax.base.types import Graph, GraphDef, Operation
from parallax.graph.batches import SUBSTITUTES, find_substitutes
from parallax.graph.control_flow import branches_at
from parallax.graph.ops import READS, is_stateful, state_op
from parallax.graph.view import GraphView, node_of

_STAND_IN = "parallax_opened_preceding/"
_COPY = "parallax_opened_measured/"


def order_records(view: GraphView, records: Sequence[CapturedRecord]) -> list[CapturedRecord]:
    """The script's records, each after those whose gradients its losses read: one in a function call may come last."""
    waiting = [one for one in records if one.gradients]  # the rest are TensorFlow's own
    if len(waiting) == 1:
        return waiting
    read_by_loss = {one.of: view.ancestors(map(node_of, one.of)) for one in waiting}
    delivered = {id(one): {node_of(values) for _, values, _ in one.gradients} for one in waiting}
    ordered: list[CapturedRecord] = []
    while waiting:
        is_ready = (
            one
            for one in waiting
            if all(other is one or read_by_loss[one.of].isdisjoint(delivered[id(other)]) for other in waiting)
        )
        ordered.append(next(is_ready, waiting[0]))
        waiting = [one for one in waiting if one is not ordered[-1]]
    return ordered


def find_preceding(graph: Graph, record: CapturedRecord, outside: Set[str]) -> list[Operation]:
    """The ops after which a call of autodiff runs; a no-op stands in for each one that the graph lacks."""
    preceding = [f"{_STAND_IN}{node}" if node in outside else node for node in record.preceding]
    made = {op.name for op in graph.get_operations()} if preceding else set()
    return [graph.get_operation_by_name(one) if one in made else tf.no_op(one) for one in preceding]


def remove_stand_ins(derived: GraphDef) -> GraphDef:
    """A graph in which nodes wait for what no-ops of `find_preceding` stand for; the graph itself where it has none."""
    if not any(node.name.startswith(_STAND_IN) for node in derived.node):
        return derived
    changed = type(derived)(versions=derived.versions, library=derived.library)
    for node in derived.node:
        if not node.name.startswith(_STAND_IN):
            added = changed.node.add()
            added.CopyFrom(node)
            added.input[:] = [one.replace(f"^{_STAND_IN}", "^") for one in node.input]
    return changed


def restore_control_inputs(opened: GraphDef) -> None:
    """Makes substitutes run after the ops that the constants in whose places they are ran after, outside of loops."""
    if not any(node.name.startswith(SUBSTITUTES) for node in opened.node):
        return
    view = GraphView(opened)
    by_tensor = find_substitutes(view)
    replaced = {node_of(substitute): tensor for tensor, substitutes in by_tensor.items() for substitute in substitutes}
    for tensor, substitutes in by_tensor.items():
        behind = _find_constants_behind(view, tensor, replaced)
        preceding = dict.fromkeys(f"^{one}" for node in behind for one in view.controls(node))
        is_in_loop = preceding and any(branch.is_loop for branch in branches_at(view, tensor))
        for substitute in substitutes if preceding and not is_in_loop else ():
            made = view.nodes[node_of(substitute)]
            made.input.extend(one for one in preceding if one not in made.input)


def _find_constants_behind(view: GraphView, tensor: str, replaced: Mapping[str, str]) -> list[str]:
    """The node of a tensor that was computed from constants alone, and the nodes that computed it.

    Args:
        view: the opened graph.
        tensor: the tensor, which a substitute replaces.
        replaced: node of a substitute -> the tensor that it replaces.
    """
    nodes = [node_of(tensor)] if node_of(tensor) in view.nodes else []
    for node in nodes:
        origins = (replaced.get(node_of(one), one) for one in view.inputs(node))
        nodes += [other for one in origins if (other := node_of(one)) not in nodes]
    return nodes


def detach_gradients(fixed: GraphView, view: GraphView, gradients: Iterable[tuple[str, str]]) -> GraphView:
    """A graph whose gradients read copies that wait for nothing where they would run other updates than before.

    For a fixed batch, autodiff knows shapes and reads no tensors for them. So an update for which only the loss waits
    does not run where a script fetches the train op alone.

    Args:
        fixed: the graph for the fixed batch.
        view: the graph with an open batch, whose GraphDef is modified.
        gradients: (gradient of the opened graph, the one of the fixed batch that it replaces).
    """
    pairs = list(gradients)
    needed = view.ancestors({node_of(new) for new, _ in pairs})
    effects = {node for node in needed & fixed.nodes.keys() if _has_effect(view, node)}
    effects -= fixed.ancestors({node_of(old) for _, old in pairs if node_of(old) in fixed.nodes}) if effects else set()
    if not effects:
        return view
    later = view.descendants(effects, waits=True)
    derived = {node for node in needed - fixed.nodes.keys() if not node.startswith(SUBSTITUTES)}
    for name in sorted(derived):
        for slot, tensor in enumerate(view.inputs(name)):
            copied = view.computed_of([node_of(tensor)]) & later if node_of(tensor) not in derived else set()
            if copied and copied.isdisjoint(effects) and not any(branches_at(view, f"{one}:0") for one in copied):
                _add_copies(view, copied)
                view.nodes[name].input[slot] = f"{_COPY}{tensor}"
    return GraphView(view.graph_def)


def _has_effect(view: GraphView, node: str) -> bool:
    """Whether a node does more than to compute its results."""
    op = view.op(node)
    return state_op(op, len(view.inputs(node))) is not None or (is_stateful(op) and op not in (*READS, "VarHandleOp"))


def _add_copies(view: GraphView, nodes: Set[str]) -> None:
    """Adds copies without control inputs of some nodes, which read each other, where they are not there yet."""
    made = {node.name for node in view.graph_def.node}
    for name in sorted(nodes):
        if f"{_COPY}{name}" not in made:
            copy = view.graph_def.node.add()
            copy.CopyFrom(view.nodes[name])
            copy.name = f"{_COPY}{name}"
            copy.input[:] = [f"{_COPY}{one}" if node_of(one) in nodes else one for one in view.inputs(name)]
            copy.attr.pop("_class", None)
