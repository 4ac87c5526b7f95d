"""States the batch length of placeholders that leave it open in a graph whose constants or other inputs fix it.

A script may leave a placeholder's first dimension open, and begin a recurrence with zeros for 128 examples: its graph
has a fixed batch of 128 all the same.
"""

from __future__ import annotations

from collections.abc import Set

import tensorflow as tf

from parallax.analysis.reading.batches.find_open_batches import leads_on
from parallax.analysis.reading.lowering.infer_shapes import with_stated_shapes
from parallax.graph.batches import mark_stated_length, sparse_feeds
from parallax.graph.ops import ELEMENTWISE
from parallax.graph.view import GraphView, node_of

_LOSSES = ("SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits")
_MEASURES = ("Shape", "ShapeN", "Size")
_JOINS, _STACKS = ("ConcatV2",), ("Pack",)


def state_fixed_lengths(view: GraphView, forward: Set[str]) -> GraphView:
    """The graph with one length for all placeholders with an open batch that ops combine with tensors of that length.

    Args:
        view: the graph, with its shapes.
        forward: the nodes on which losses depend, outside initial values.
    """
    placeholders = [node for node in view.nodes_of(("Placeholder",)) if (view.shape(f"{node}:0") or (0,))[0] is None]
    placeholders = [node for node in placeholders if node not in sparse_feeds(view)]  # as long as it has entries
    forward = forward - {node for node in view.nodes_of(("Transpose",)) if _moves_rows(view, node)}
    found = {node: _find_lengths(view, node, forward) for node in placeholders if node in forward}
    lengths = set[int]().union(*found.values())
    if len(lengths) != 1:
        return view
    (length,) = lengths
    dims = {node: (view.shape(f"{node}:0") or ())[1:] for node, of_node in found.items() if of_node}
    try:
        stated = with_stated_shapes(view, {node: (length, *others) for node, others in dims.items()})
    except tf.errors.InvalidArgumentError:
        return view
    for node in dims:
        mark_stated_length(stated.nodes[node], length)
    return stated


def _find_lengths(view: GraphView, placeholder: str, forward: Set[str]) -> set[int]:
    """The fixed lengths with which ops combine a placeholder's open first axis."""
    leading = {node for node in forward if any(leads_on(view, tensor) for tensor in view.outputs(node))}
    leading -= set(view.nodes_of(_MEASURES))
    reached, lengths = view.reach([placeholder], leading), set[int]()
    readers = {edge.node for node in reached for tensor in view.outputs(node) for edge in view.consumers(tensor)}
    for node in readers & forward:
        op = view.op(node)
        if op not in ELEMENTWISE and op not in (*_LOSSES, *_STACKS) and not _joins_rows(view, node):
            continue
        inputs = view.inputs(node)[: -1 if op in _JOINS else None]
        shapes = [shape for tensor in inputs if (shape := view.shape(tensor))]
        is_open = any((view.shape(tensor) or (0,))[0] is None and node_of(tensor) in reached for tensor in inputs)
        if is_open and (op in _LOSSES or len({len(shape) for shape in shapes}) == 1):
            lengths.update(length for shape in shapes if (length := shape[0] or 0) > 1)
    return lengths


def _moves_rows(view: GraphView, node: str) -> bool:
    """Whether a transposition puts another axis first, or may."""
    order = view.constant(view.inputs(node)[1])
    return order is None or not len(order) or int(order[0]) != 0


def _joins_rows(view: GraphView, node: str) -> bool:
    """Whether a node concatenates along another axis than the first."""
    if view.op(node) not in _JOINS:
        return False
    axis = view.constant(view.inputs(node)[-1])
    return axis is not None and int(axis) % len(view.shape(f"{node}:0") or (0,)) != 0
