"""Opens the batch of a graph that was built for a fixed batch length, and has TensorFlow derive its gradients again.

Autodiff folds a fixed batch length into constants, which cannot be distinguished from widths. So batch sources get an
open first dimension, constants of the forward pass that lie along the batch are resized to its length, and
`tf.gradients` runs again for the gradients that the script requested; it then emits Shape and Size ops instead of
constants. The consumers of the old gradients read the new ones. Where any of these steps is undecidable there is no
opened graph, and the reason is reported: losses are then taken to be means over each per-worker batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass

import tensorflow as tf

from parallax.analysis.reading.batches.axis_groups import AxisGroups
from parallax.analysis.reading.batches.batch_constants import BatchConstants
from parallax.analysis.reading.batches.batch_degrees import gradients_of
from parallax.analysis.reading.batches.batch_divisors import BatchDivisors
from parallax.analysis.reading.batches.batch_numbers import IntegerClassifier
from parallax.analysis.reading.batches.control_inputs import (
    detach_gradients,
    find_preceding,
    order_records,
    remove_stand_ins,
    restore_control_inputs,
)
from parallax.analysis.reading.batches.find_open_batches import DEFAULTS, SOURCES, is_assigned
from parallax.analysis.reading.batches.length_sources import LengthSources, add_measured_ancestors
from parallax.analysis.reading.batches.open_bodies import OpenBodies
from parallax.analysis.reading.batches.open_lengths import Shape, find_lost_shapes, find_mismatch, find_open_axis
from parallax.analysis.reading.batches.replaced_gradients import (
    find_copies,
    infer_others,
    redirect_consumers,
    replace_gradients,
)
from parallax.analysis.reading.batches.unclassified_constants import UnclassifiedConstants
from parallax.analysis.reading.batches.update_lengths import UpdateLengths
from parallax.analysis.reading.batches.weighted_losses import find_weights, weigh_losses
from parallax.analysis.reading.construction.custom_gradients import NotDerivedError, rebind_custom_gradients
from parallax.analysis.reading.construction.handle_gradients import differentiate_handles, remove_handle_zeros
from parallax.analysis.reading.construction.measured_tensors import MeasuredTensor
from parallax.analysis.reading.construction.old_contexts import Contexts, import_with_contexts, in_style_of, is_complete
from parallax.analysis.reading.construction.recorded_gradients import CapturedRecord, losses_of, records_in
from parallax.analysis.reading.lowering.infer_shapes import drop_shapes, infer_shapes_again
from parallax.base.types import Graph, GraphDef
from parallax.graph.batches import find_substitutes, mark_opened
from parallax.graph.view import GraphView, node_of

SCOPE = "parallax_opened"
_UNKNOWN = "constants of that size may be the batch size or a layer width"
_UNKNOWN_OF = "a constant that op {!r} takes may be the batch size, be computed from it, or be unrelated"
_UNREAD = "op {!r} would take the batch size from an input that not all of its runs read"
_MOST_PASSES, _MOST_LETTERS = 100, 120
_REFERENCES = ("VariableV2", "Variable")
_NOT_DERIVED = (ValueError, TypeError, LookupError, AttributeError, AssertionError, RuntimeError, ArithmeticError)
"""Errors of TensorFlow, for mismatched shapes or ops that it cannot differentiate in an imported graph, and those of a
script's custom gradients, for lengths that are not known.
"""


@contextmanager
def _convert_errors() -> Iterator[None]:
    """Converts errors of TensorFlow, and of a script's custom gradients, to NotDerivedError."""
    try:
        yield
    except _NOT_DERIVED as error:
        raise NotDerivedError(_describe(error)) from error


def _describe(error: Exception) -> str:
    """An error's type and the begin of its text."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0][:_MOST_LETTERS]}"


@dataclass(frozen=True, slots=True)
class OpenedGraph:
    """A graph with its batch open.

    Attributes:
        view: the graph.
        records: the records of autodiff in it.
        gradients: tensor that autodiff delivered -> the tensor of the script's graph that it replaces.
    """

    view: GraphView
    records: tuple[CapturedRecord, ...]
    gradients: Mapping[str, str]


def open_fixed_batch(
    view: GraphView,
    records: Sequence[CapturedRecord],
    initial: Set[str],
    contexts: Contexts,
    measured: Mapping[str, MeasuredTensor],
) -> OpenedGraph | str:
    """The graph with its batch open; or why it cannot be opened, a sentence without its stop.

    Args:
        view: the captured graph.
        records: the records of autodiff.
        initial: nodes on which initial values depend.
        contexts: of its TensorFlow 1 loops and conditionals.
        measured: constant -> the tensor from which TensorFlow made it.
    """
    if not records or not all(record.is_plain for record in records if record.gradients):
        return "not all gradients come from tf.gradients, called with tensors after parallax was imported"
    view, records = weigh_losses(view, records)
    targets = _find_targets(records)  # a gradient has its target's shape
    measured = {name: one._replace(tensor=targets.get(one.tensor, one.tensor)) for name, one in measured.items()}
    autodiff = frozenset[str]().union(*(record.ops for record in records))
    losses = losses_of(records)
    delivered = {node_of(t) for record in records for _, *found in record.gradients for t in found if t}
    of_losses = view.ancestors(losses) - autodiff
    forward = of_losses | (view.nodes.keys() - autodiff - initial)
    batch = _find_batch(view, forward - initial, of_losses)
    if isinstance(batch, str):
        return batch
    sources, length = batch
    fixed = f"the graph is built for a fixed batch of {length} examples, which cannot be changed"
    defaults = [
        f"{node}:0"
        for node in view.nodes_of(DEFAULTS)
        if node in forward - initial and (view.shape(f"{node}:0") or (None,))[0] == length
    ]
    try:
        names = {tensor: f"{SCOPE}_{number}:0" for number, tensor in enumerate((*sources, *defaults))}
        opened = _with_open_sources(view, names, length, initial)
        needed = (
            _find_part_of_losses(view, names, losses, autodiff, measured) if contexts.are_none else view.nodes.keys()
        )
        numbers = IntegerClassifier(
            view, forward, length, AxisGroups(view, forward, sources, length, measured).is_batch
        )
        inputs = LengthSources(view, {tensor: names[tensor] for tensor in sources}, autodiff, measured)
        parts = forward & needed & inputs.of_batches, losses & forward & inputs.of_batches
        updates = UpdateLengths(view, measured, names, forward, forward - parts[0], autodiff, inputs, targets)
        measured = {
            constant: one._replace(tensor=names.get(one.tensor, one.tensor))
            for constant, one in measured.items()
            if constant in parts[0] and inputs.are_read(one.tensor, constant)
        }
        unknown = updates.open_counters(opened, length)
        bodies, running = OpenBodies(view, length, numbers), [node for node in view.nodes if node in parts[0]]
        divisors = BatchDivisors(view, *parts, length, numbers, bodies.find_degrees, gradients_of(records, names))
        constants = BatchConstants(view, *parts, divisors, length, inputs.find, numbers, measured)
        outside, declared = view.nodes.keys() - needed, dict[str, Sequence[Shape | None]]()
        for _ in range(_MOST_PASSES):
            graph = _import_graph(opened, outside, contexts, declared) if not contexts.are_none else None
            seen = (
                GraphView(graph.as_graph_def(add_shapes=True))
                if graph
                else infer_shapes_again(_without(opened, outside))
            )
            before = opened.SerializeToString(deterministic=True)
            lost = find_lost_shapes(view, seen, numbers.open_shape)
            declared |= lost
            if lost or _open_delivered(view, seen, opened, records):
                continue
            is_changed = constants.change(seen, opened) or bodies.change(seen, opened, running, constants)
            if not is_changed and not constants.open_divisors(seen, opened):
                left = constants.find_unclassified(seen) or unknown or updates.open_shapes(seen, opened, length)
                is_classified = constants.changes.are_classified and bodies.are_classified and not left
                unclassified = UnclassifiedConstants(view, forward, numbers, set())
                is_classified = is_classified and not unclassified.are_of_gradients(delivered)
                divisors.open_divisors(seen, opened, inputs.find, outside & forward)
                is_classified = is_classified and divisors.are_classified
                if graph is None or opened.SerializeToString(deterministic=True) != before:
                    graph = _import_graph(opened, outside, contexts, declared)
                if is_classified and not contexts.are_none:
                    is_classified = is_complete(graph, GraphView(opened).ancestors(losses) - autodiff)
                if is_classified and contexts.are_none:
                    if mismatch := find_mismatch(opened, names, outside | autodiff, length):
                        return f"{fixed}, since at another size TensorFlow reports: {mismatch}"
                gradients = _derive_gradients(view, graph, opened, outside, records, names) if is_classified else None
                if constants.changes.without_batch and gradients is None:
                    return f"{fixed}, since {_UNREAD.format(constants.changes.without_batch)}"
                return gradients or f"{fixed}, since {_UNKNOWN_OF.format(left) if left else _UNKNOWN}"
        return f"{fixed} in {_MOST_PASSES} passes"
    except (NotDerivedError, tf.errors.OpError) as error:
        text = str(error) if isinstance(error, NotDerivedError) else _describe(error)
        return f"{fixed}, since its gradients are not derived again for another size ({text})"


def _find_batch(view: GraphView, forward: Set[str], of_losses: Set[str]) -> tuple[list[str], int] | str:
    """(the sources of a fixed batch, its length); or why the length is unknown.

    Args:
        view: the captured graph.
        forward: the nodes outside autodiff and outside initial values.
        of_losses: the nodes on which losses depend.
    """
    sources = [
        tensor
        for node in view.nodes
        if node in forward and view.op(node) in SOURCES
        for tensor in view.outputs(node)
        if view.shape(tensor)
    ]
    lengths = {(view.shape(tensor) or (None,))[0] for tensor in sources if node_of(tensor) in of_losses}
    length = lengths.pop() if len(lengths) == 1 else None
    if len(lengths - {None}) == 1:  # inputs beside it are open
        (length,) = lengths - {None}
    if length is None or length < 2:
        several = ", ".join(sorted(map(str, {*lengths, length} - {None})))
        return (
            f"the inputs of the loss do not show the batch size{f' (first dimensions: {several})' if several else ''}"
        )
    return [t for t in sources if (view.shape(t) or (None,))[0] == length and not is_assigned(view, t)], length


def _with_open_sources(view: GraphView, names: Mapping[str, str], length: int, initial: Set[str]) -> GraphDef:
    """The graph in which all consumers read batch sources with an open first dimension, by other names."""
    opened = {tensor: node_of(name) for tensor, name in names.items()}
    changed = type(view.graph_def)()
    changed.CopyFrom(view.graph_def)
    for function in changed.library.function:
        drop_shapes(function.node_def)
    by_name = {node.name: node for node in changed.node}
    for tensor, name in opened.items():
        for edge in view.consumers(tensor):
            if edge.node not in initial:
                by_name[edge.node].input[edge.slot] = name
    for tensor, name in opened.items():
        made = changed.node.add(name=name, op="PlaceholderWithDefault", input=[tensor])
        made.attr["dtype"].type = view.dtype(tensor)
        for axis, size in enumerate(view.shape(tensor) or ()):
            made.attr["shape"].shape.dim.add(size=-1 if axis == 0 or size is None else size)
        mark_opened(made, length)
    return changed


def _open_delivered(view: GraphView, inferred: GraphView, opened: GraphDef, records: Sequence[CapturedRecord]) -> bool:
    """Sets open shapes for gradients whose targets have them; returns whether any changed."""
    by_name, count = {node.name: node for node in opened.node}, len(opened.node)
    autodiff = frozenset[str]().union(*(record.ops for record in records))
    for values, target in _find_targets(records).items():
        name, takers = _seen_open(values), [edge for edge in view.consumers(values) if edge.node not in autodiff]
        is_there = all(node_of(tensor) in inferred.nodes for tensor in (values, target))
        if name in by_name or not takers or not is_there or find_open_axis(view, inferred, target) is None:
            continue
        made = opened.node.add(name=name, op="PlaceholderWithDefault", input=[values])
        made.attr["dtype"].type = view.dtype(values)
        made.attr["shape"].shape.CopyFrom(tf.TensorShape(inferred.shape(target)).as_proto())
        for edge in takers:
            by_name[edge.node].input[edge.slot] = name
    return len(opened.node) > count


def _find_targets(records: Sequence[CapturedRecord]) -> dict[str, str]:
    """Dense gradient -> its target."""
    return {values: target for record in records for target, values, indices in record.gradients if indices is None}


def _seen_open(gradient: str) -> str:
    """The name of a gradient's stand-in until it is derived again."""
    return f"{SCOPE}_delivered/{gradient.replace(':', '_')}"


def _import_graph(
    opened: GraphDef, outside: Set[str], contexts: Contexts, declared: Mapping[str, Sequence[Shape | None]]
) -> Graph:
    """A graph without some nodes, on which none of the others depends; TensorFlow infers the shapes.

    Args:
        opened: the graph with an open batch.
        outside: nodes.
        contexts: of its TensorFlow 1 loops and conditionals.
        declared: node -> the shapes of its results, where TensorFlow does not infer them.
    """
    bare = _without(opened, outside)
    drop_shapes(bare.node)
    for node in bare.node:
        if shapes := declared.get(node.name):
            node.attr["_output_shapes"].list.shape.extend(tf.TensorShape(one).as_proto() for one in shapes)
    with _convert_errors():
        if not contexts.are_none:
            return import_with_contexts(bare, contexts)
        with tf.Graph().as_default() as graph:
            tf.graph_util.import_graph_def(bare, name="")
        return graph


def _find_part_of_losses(
    view: GraphView,
    sources: Iterable[str],
    losses: Set[str],
    autodiff: Set[str],
    measured: Mapping[str, MeasuredTensor],
) -> set[str]:
    """The ancestors of losses and the nodes computed from batches outside autodiff, with all their ancestors.

    A constant depends on the tensor from whose shape it was made.
    """
    begin = {node_of(tensor) for tensor in sources}
    loss_nodes = view.ancestors(losses | view.reach(begin, view.nodes.keys() - autodiff))
    return add_measured_ancestors(view, loss_nodes, measured)


def _without(opened: GraphDef, outside: Set[str]) -> GraphDef:
    """A copy of a graph without some nodes, on which none of the others depends."""
    part = type(opened)(versions=opened.versions, library=opened.library)
    for node in opened.node:
        if node.name not in outside:
            part.node.add().CopyFrom(node)
            part.node[-1].attr.pop("_class", None)  # the colocation may name a missing node
    return part


def _derive_gradients(
    fixed: GraphView,
    graph: Graph,
    opened: GraphDef,
    outside: Set[str],
    records: Sequence[CapturedRecord],
    names: Mapping[str, str],
) -> OpenedGraph | None:
    """The graph with all gradients derived again, each after those that are parts of what is differentiated.

    Args:
        fixed: the graph for the fixed batch.
        graph: the graph with an open batch, without some nodes; gradients are added to it.
        opened: the graph with an open batch.
        outside: the nodes that `graph` lacks, as gradients do not depend on them.
        records: the records of autodiff.
        names: source of the fixed batch -> that of the open one.
    """
    instead, gradients = dict[str, tf.Tensor](), dict[str, str]()
    # Optimizers do the same: no update of a reference variable precedes the gradients that read it.
    has_references = any(fixed.op(node) in _REFERENCES for node in fixed.nodes)
    autodiff = frozenset[str]().union(*(record.ops for record in records))
    substitutes = {old: new for old, (new, *others) in find_substitutes(GraphView(opened)).items() if not others}
    for node in outside:
        graph.unique_name(node)  # that no new op gets
    closures = rebind_custom_gradients(graph, {**names, **substitutes})
    with graph.as_default(), in_style_of(graph), closures, differentiate_handles(graph):
        for number, record in enumerate(order_records(fixed, records)):
            ys, weights = find_weights(graph, record)
            stopped = [graph.get_tensor_by_name(names.get(tensor, tensor)) for tensor in record.stopped]
            xs = [graph.get_tensor_by_name(substitutes.get(target, target)) for target, _, _ in record.gradients]
            preceding = find_preceding(graph, record, outside)
            scope = tf.name_scope(f"{SCOPE}_gradients_{number}/")
            with _convert_errors(), scope, tf.control_dependencies(preceding):
                new_gradients = tf.gradients(
                    ys, xs, weights, name="gradients", gate_gradients=has_references, stop_gradients=stopped
                )
            for (_, values, indices), gradient in zip(record.gradients, new_gradients, strict=True):
                if isinstance(gradient, tf.IndexedSlices) != (indices is not None):
                    return None
                parts = {values: gradient}
                if indices is not None:
                    parts = {values: gradient.values, indices: gradient.indices}
                gradients |= {str(new.name): old for old, new in parts.items()}
                if values in record.dense_shapes and gradient.dense_shape is not None:
                    shape = record.dense_shapes[values]  # that of another lookup, unchanged
                    parts[shape] = tf.cast(gradient.dense_shape, tf.as_dtype(fixed.dtype(shape)))
                copies = {one: new for old, new in parts.items() for one in find_copies(fixed, old, record.ops)}
                for old, new in (copies | parts).items():
                    if node_of(old) not in outside:
                        redirect_consumers(graph, record, old, new)
                    instead[old] = new
    ops = [op.name for op in graph.get_operations()]
    derived = remove_stand_ins(graph.as_graph_def(add_shapes=True))
    remove_handle_zeros(derived)
    replaced = replace_gradients(opened, derived, instead, autodiff, {old: _seen_open(old) for old in instead})
    restore_control_inputs(replaced)
    view = detach_gradients(fixed, GraphView(replaced), gradients.items())
    with _convert_errors():
        infer_others(fixed, view, graph, outside)
    again, hidden = records_in(graph, ops, (), view)
    return None if hidden else OpenedGraph(view, again, gradients)
