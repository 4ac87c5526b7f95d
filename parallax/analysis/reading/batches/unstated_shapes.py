"""States the shapes of placeholders that a script has created without one, from the ops that read them.

TensorFlow 1 lets a script feed such a placeholder a scalar, as a dropout's rate or a weight of a loss, or a value for
each example, as a mask. Ops that combine it elementwise with examples do not depend on which: a worker has its part of
the result. A sum of the placeholder alone does: no script sums a scalar. Where ops need its axes, as those of labels,
it has the first rank with which TensorFlow accepts the graph, and elementwise ops combine tensors of equal rank.

A script may also leave a placeholder's first dimension open, and begin a recurrence with zeros for 128 examples: its
graph has a fixed batch of 128 all the same, which is stated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from math import prod

import tensorflow as tf

from parallax.analysis.reading.batches.find_open_batches import DEFAULTS, SOURCES, leads_on
from parallax.analysis.reading.lowering.infer_shapes import with_stated_shapes
from parallax.graph.batches import mark_stated_length, mark_stated_rank, sparse_feeds
from parallax.graph.ops import ELEMENTWISE, READS_OF_SHAPES, is_optimizer_update, takes_functions
from parallax.graph.view import GraphView, node_of

Shape = tuple[int | None, ...]

_COPIES = ("Identity", "Cast", "EnsureShape", "Enter", "RefEnter")
_SWITCHES, _MERGES = ("Switch", "RefSwitch"), ("Merge", "RefMerge")
_REDUCES = ("Sum", "Mean", "Max", "Min", "Prod", "All", "Any")
_OF_SHAPES = ("BroadcastGradientArgs", "Reshape", "Fill", "Tile", "StackPushV2", "TensorListPushBack")
_OPAQUE = ("PyFunc", "PyFuncStateless", "EagerPyFunc", "Assert", "PrintV2")
_SUMMARIES = ("ScalarSummary", "HistogramSummary", "WriteScalarSummary")
_RULED = ("SparseSoftmaxCrossEntropyWithLogits", "ConcatV2", "MatMul", "BatchMatMulV2")
_COMBINES = (*_RULED, "SoftmaxCrossEntropyWithLogits")
"""Ops that combine examples; TensorFlow decides the ranks of the inputs of the first ones."""
_LOSSES = ("SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits")
_MEASURES = ("Shape", "ShapeN", "Size")
_JOINS, _STACKS = ("ConcatV2",), ("Pack",)
_RANKS, _RANKS_OF_IDS = (2, 1, 3, 4), (1, 2, 3, 4)


def list_unstated_placeholders(view: GraphView) -> list[str]:
    """The placeholders without a shape."""
    return [node for node in view.nodes_of(("Placeholder", *DEFAULTS)) if view.shape(f"{node}:0") is None]


def state_shapes(view: GraphView, lowered: GraphView) -> GraphView:
    """The graph with the shapes of placeholders without one, where ops decide them; the placeholders are marked.

    A scalar's shape is () and that of examples has an open length, or that of a fixed batch.

    Args:
        view: the graph.
        lowered: the same without conditionals and loops at its top level, whose ops decide.
    """
    unstated = list_unstated_placeholders(view)
    while unstated:  # one that is stated may decide another
        uses = {node: _find_uses(lowered, node) for node in unstated}
        found = {node: shape for node in unstated if (shape := _decide_shape(uses[node])) is not None}
        if not found:
            tried = ((node, _try_ranks(lowered, node, uses[node])) for node in unstated)
            found = dict(next(([(node, shape)] for node, shape in tried if shape is not None), []))
        if not found:
            break
        ranks = {node: min(map(len, uses[node].partners)) for node, shape in found.items() if shape == ()}
        stated = _state_together(lowered, found, ranks)
        view = stated if lowered is view else _state_together(view, found, ranks)
        lowered = stated
        unstated = [node for node in unstated if node not in found]
    return view


def _state_together(view: GraphView, found: Mapping[str, Shape], ranks: Mapping[str, int]) -> GraphView:
    """The graph with shapes of placeholders, but for those that TensorFlow finds invalid; all are marked.

    Args:
        view: the graph.
        found: placeholder -> its shape.
        ranks: placeholder that may be fed a worker's part in place of a scalar -> the highest rank of that part.
    """
    stated = _try_shapes(view, found)
    if stated is None and len(found) > 1:
        for node, shape in found.items():
            view = _state_together(view, {node: shape}, ranks)
        return view
    view = view if stated is None else stated
    for node, shape in found.items():
        if view.shape(f"{node}:0") is not None or shape == ():
            mark_stated_rank(view.nodes[node], len(shape), ranks.get(node, len(shape)))
    return view


def _try_shapes(view: GraphView, found: Mapping[str, Shape]) -> GraphView | None:
    """The graph with shapes of placeholders; None where TensorFlow finds them invalid."""
    try:
        return with_stated_shapes(view, found)
    except tf.errors.InvalidArgumentError:
        return None


def _decide_shape(uses: _Uses) -> Shape | None:
    """The shape that the uses of a placeholder alone decide."""
    if uses.is_reduced:
        return next(iter(uses.partners)) if len(uses.partners) == 1 else None
    return () if uses.partners and not uses.needs_axis and not uses.is_opaque else None


def _try_ranks(view: GraphView, node: str, uses: _Uses) -> Shape | None:
    """The first shape of a placeholder, by rank, with which its values have the ranks of the examples beside them."""
    if uses.is_reduced or not uses.needs_axis or uses.is_opaque:
        return None
    sources = _find_sources(view)
    lengths = {(view.shape(tensor) or (None,))[0] for source in sources for tensor in view.outputs(source)}
    length = lengths.pop() if len(lengths) == 1 else None
    is_real = tf.as_dtype(view.dtype(f"{node}:0")).is_floating
    of_batches = view.descendants(sources, stops={node})
    shapes: list[Shape] = [(length, *[None] * (rank - 1)) for rank in (_RANKS if is_real else _RANKS_OF_IDS)]
    if len(uses.columns) == 1:
        shapes = [(length, *uses.columns), *shapes]
    for shape in shapes:
        stated = _try_shapes(view, {node: shape})
        if stated is not None and (uses.columns or _have_equal_ranks(stated, node, of_batches)):
            return shape
    return None


def _find_sources(view: GraphView) -> list[str]:
    """The sources of batches whose shapes are known."""
    return [one for one in view.nodes_of((*SOURCES, *DEFAULTS)) if any(map(view.shape, view.outputs(one)))]


def _have_equal_ranks(view: GraphView, placeholder: str, of_batches: Set[str]) -> bool:
    """Whether ops combine values of a placeholder with examples, elementwise only if both have equal ranks."""
    alone = view.descendants([placeholder]) - of_batches
    is_combined = False
    for node in of_batches & view.nodes.keys():
        op = view.op(node)
        if op not in ELEMENTWISE and op not in _COMBINES:
            continue
        shapes = [view.shape(tensor) for tensor in view.inputs(node) if node_of(tensor) in alone]
        others = [view.shape(tensor) for tensor in view.inputs(node) if node_of(tensor) in of_batches]
        found = [shape for shape in (*shapes, *others) if shape != ()]
        if any(shape != () for shape in shapes) and any(shape != () for shape in others):
            is_combined = True
            is_ruled = op in _RULED or (op == "Select" and len(view.shape(view.inputs(node)[0]) or ()) == 1)
            if None in found or (not is_ruled and len({len(shape or ()) for shape in found}) > 1):
                return False
    return is_combined


@dataclass
class _Uses:
    """The uses of a placeholder, and of tensors computed elementwise from it alone.

    Attributes:
        is_reduced: whether an op sums them, or the like.
        partners: shapes of examples with which ops combine them elementwise.
        needs_axis: whether another op reads them that may need an axis.
        columns: numbers of entries of the rows to which ops reshape them.
        is_opaque: whether a function reads them.
    """

    is_reduced: bool = False
    partners: set[Shape] = field(default_factory=set)
    needs_axis: bool = False
    columns: set[int] = field(default_factory=set)
    is_opaque: bool = False


def _find_uses(view: GraphView, placeholder: str) -> _Uses:
    of_batches = view.descendants(_find_sources(view), stops={placeholder})
    waiting, seen, uses = [f"{placeholder}:0"], {f"{placeholder}:0"}, _Uses()
    while waiting:
        tensor = waiting.pop()
        for edge in view.consumers(tensor):
            op, made = view.op(edge.node), view.outputs(edge.node)
            passed: Sequence[str] = ()
            if op in _REDUCES and edge.slot == 0:
                uses.is_reduced = True
            elif op == "IdentityN":
                passed = made[edge.slot : edge.slot + 1]
            elif op in _SWITCHES and edge.slot == 1:
                pass  # a predicate
            elif op in ELEMENTWISE or op in (*_COPIES, *_SWITCHES, *_MERGES):
                others = [one for one in view.inputs(edge.node)[: 1 if op in _SWITCHES else None] if one not in seen]
                passed = made if all(view.shape(one) == () for one in others) else ()
                for one in others:
                    shape = view.shape(one)
                    if shape and op in _MERGES:
                        uses.needs_axis = True
                    elif shape and (shape[0] is None or node_of(one) in of_batches):
                        is_choice = op == "Select" and edge.slot == 0  # which may choose whole examples
                        uses.partners.add(shape[:1] if is_choice else shape)
            elif op in READS_OF_SHAPES:
                takers = {view.op(edge.node) for one in made for edge in view.consumers(one)}
                uses.needs_axis |= not takers <= set(_OF_SHAPES)
            elif op not in _SUMMARIES and not is_optimizer_update(op):
                dims = view.constant(view.inputs(edge.node)[1]) if op == "Reshape" and edge.slot == 0 else None
                if dims is not None and dims.ndim == 1 and len(dims) > 1 and dims[0] == -1:
                    uses.columns.add(prod(map(int, dims[1:])))
                is_opaque = takes_functions(op) or op in _OPAQUE
                uses.is_opaque, uses.needs_axis = uses.is_opaque or is_opaque, uses.needs_axis or not is_opaque
            waiting += [one for one in passed if one not in seen]
            seen.update(passed)
    return uses


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
