"""States the shapes of placeholders that a script has created without one, from the ops that read them.

TensorFlow 1 lets a script feed such a placeholder a scalar, as a dropout's rate or a weight of a loss, or a value for
each example, as a mask. Ops that combine it elementwise with examples do not depend on which: a worker has its part of
the result. A sum of the placeholder alone does: no script sums a scalar. Where ops need its axes, as those of labels,
it has the first rank with which TensorFlow accepts the graph, and elementwise ops combine tensors of equal rank.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field

import tensorflow as tf

from parallax.analysis.reading.batches.find_open_batches import DEFAULTS, SOURCES
from parallax.analysis.reading.lowering.infer_shapes import with_stated_shapes
from parallax.graph.batches import mark_stated_rank
from parallax.graph.ops import ELEMENTWISE, is_optimizer_update, takes_functions
from parallax.graph.view import GraphView, node_of

Shape = tuple[int | None, ...]

_COPIES = ("Identity", "Cast", "EnsureShape", "Enter", "RefEnter")
_SWITCHES, _MERGES = ("Switch", "RefSwitch"), ("Merge", "RefMerge")
_REDUCES = ("Sum", "Mean", "Max", "Min", "Prod", "All", "Any")
_READS_SHAPE = ("Shape", "ShapeN", "Size", "Rank")
_OF_SHAPES = ("BroadcastGradientArgs", "Reshape", "Fill", "Tile", "StackPushV2", "TensorListPushBack")
_OPAQUE = ("PyFunc", "PyFuncStateless", "EagerPyFunc", "Assert", "PrintV2")
_SUMMARIES = ("ScalarSummary", "HistogramSummary", "WriteScalarSummary")
_RULED = ("SparseSoftmaxCrossEntropyWithLogits", "ConcatV2", "MatMul", "BatchMatMulV2")
_COMBINES = (*_RULED, "SoftmaxCrossEntropyWithLogits")
"""Ops that combine examples; TensorFlow decides the ranks of the inputs of the first ones."""
_RANKS, _RANKS_OF_IDS = (2, 1, 3, 4), (1, 2, 3, 4)
_VARIABLES = ("ReadVariableOp", "VariableV2", "Variable")


def find_unstated(view: GraphView) -> list[str]:
    """The placeholders without a shape."""
    return [node for node in view.nodes_of(("Placeholder", *DEFAULTS)) if view.shape(f"{node}:0") is None]


def state_shapes(view: GraphView, lowered: GraphView) -> GraphView:
    """The graph with the shapes of placeholders without one, where ops decide them; the placeholders are marked.

    A scalar's shape is () and that of examples has an open length, or that of a fixed batch.

    Args:
        view: the graph.
        lowered: the same without conditionals and loops at its top level, whose ops decide.
    """
    for node in find_unstated(view):
        shape, lowered = _find_shape(lowered, node)
        if shape is not None:
            view = _try_shape(view, node, shape) or view
            if view.shape(f"{node}:0") is not None or shape == ():
                mark_stated_rank(view.nodes[node], len(shape))
    return view


def _find_shape(view: GraphView, node: str) -> tuple[Shape | None, GraphView]:
    """The shape of a placeholder, None where ops do not decide it; and the graph with it."""
    sources = [one for one in view.nodes_of((*SOURCES, *DEFAULTS)) if any(map(view.shape, view.outputs(one)))]
    of_batches = view.descendants(sources, stops={node})
    uses = _find_uses(view, node, of_batches, view.descendants(view.nodes_of(_VARIABLES)) - of_batches)
    lengths = {(view.shape(tensor) or (None,))[0] for source in sources for tensor in view.outputs(source)}
    length = lengths.pop() if len(lengths) == 1 else None
    shapes = _list_shapes(uses, length, tf.as_dtype(view.dtype(f"{node}:0")).is_floating)
    is_decided = uses.is_reduced or uses.is_clear
    for shape in shapes:
        stated = _try_shape(view, node, shape)
        if stated is not None and (is_decided or _have_equal_ranks(stated, node, of_batches)):
            return shape, stated
    return () if () in shapes else None, view


def _try_shape(view: GraphView, node: str, shape: Shape) -> GraphView | None:
    """The graph with a placeholder's shape; None where TensorFlow finds it invalid."""
    try:
        return with_stated_shapes(view, {node: shape})
    except tf.errors.InvalidArgumentError:
        return None


def _list_shapes(uses: _Uses, length: int | None, is_real: bool) -> list[Shape]:
    """The shapes that a placeholder may have, the likeliest first."""
    if uses.is_reduced:
        return list(uses.partners) if len(uses.partners) == 1 else []
    if uses.is_clear:
        return [()] if uses.partners else []
    return [] if uses.is_opaque else [(length, *[None] * (rank - 1)) for rank in (_RANKS if is_real else _RANKS_OF_IDS)]


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
        is_clear: whether no other op reads them that may need an axis.
        is_opaque: whether a function reads them.
    """

    is_reduced: bool = False
    partners: set[Shape] = field(default_factory=set)
    is_clear: bool = True
    is_opaque: bool = False


def _find_uses(view: GraphView, placeholder: str, of_batches: Set[str], of_variables: Set[str]) -> _Uses:
    waiting, seen, uses = [f"{placeholder}:0"], {f"{placeholder}:0"}, _Uses()
    while waiting:
        tensor = waiting.pop()
        for edge in view.consumers(tensor):
            op, made = view.op(edge.node), view.outputs(edge.node)
            if op == "IdentityN" and made[edge.slot] not in seen:
                waiting.append(made[edge.slot])
                seen.add(made[edge.slot])
            if op in _REDUCES and edge.slot == 0:
                uses.is_reduced = True
            elif op in _SWITCHES and edge.slot == 1:
                pass  # a predicate
            elif op in ELEMENTWISE or op in (*_COPIES, *_SWITCHES, *_MERGES):
                others = [one for one in view.inputs(edge.node)[: 1 if op in _SWITCHES else None] if one not in seen]
                if all(view.shape(one) == () for one in others):
                    waiting += made
                    seen.update(made)
                for one in others:
                    shape = view.shape(one)
                    if shape and op in _MERGES:
                        uses.is_clear = False
                    elif shape and node_of(one) in of_batches:
                        is_choice = op == "Select" and edge.slot == 0  # which may choose whole examples
                        uses.partners.add(shape[:1] if is_choice else shape)
                    elif shape and node_of(one) in of_variables:
                        uses.is_clear = False  # columns of features, perhaps
            elif op in _READS_SHAPE:
                takers = {view.op(edge.node) for one in made for edge in view.consumers(one)}
                uses.is_clear &= takers <= set(_OF_SHAPES)
            elif op not in (*_SUMMARIES, "IdentityN") and not is_optimizer_update(op):
                uses.is_clear = False
                uses.is_opaque |= takes_functions(op) or op in _OPAQUE
    return uses
