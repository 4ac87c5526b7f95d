"""Finds sums over the batch that losses are made of and that nothing divides, as `reduction="sum"` leaves them.

The one process has the sum of all workers' sums, of which a mean over the workers is a W-th. Losses are followed back
through what keeps a sum a sum: sums of scalars, products and quotients with what all workers have alike. Looked for
where the graph says that batches may be uneven (uneven.py); in other graphs a worker's loss is what the script says.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from parallax.analysis.propagation.axis_einsum import sums_over_batch, terms_of
from parallax.analysis.propagation.batch_axis import BatchAxes
from parallax.analysis.propagation.chosen_rows import ChosenRows
from parallax.analysis.propagation.lengths import is_other_length
from parallax.analysis.propagation.losses import trained_losses
from parallax.analysis.propagation.walk import Walk
from parallax.analysis.reading.gradients import autodiff_ops
from parallax.errors import GraphError
from parallax.graph.batches import is_of_vector_loss
from parallax.graph.view import Edge, Shape, split_tensor
from parallax.plans.losses import Summed

_PASSES = (
    *("Identity", "Reshape", "Squeeze", "ExpandDims", "Cast", "CheckNumerics", "Snapshot", "PreventGradient", "Neg"),
    "StopGradient",
)
_ADDS = ("Add", "AddV2", "AddN", "Sub", "Pack")
_DIVISIONS = ("RealDiv", "Div", "DivNoNan")
_NOT_REDUCED = (
    "A loss must be a number, and {op} {loss!r} has an entry for each example of the batch, of which a gradient is "
    "that of the sum. Reduce it: tf.reduce_sum(loss), or tf.reduce_mean(loss) as Keras's losses do."
)
_MIXED = (
    "A loss that has an entry for each example must be computed of single examples, and of the entries that {op} "
    "{node!r} adds up that is not proven: a mean or a sum over the batch may be part of each. Give all losses of a "
    "model one reduction, or reduce the loss to a number: tf.reduce_sum(loss)."
)
_EQUAL = ("same", "fed")
_SPREADS = ("Tile", "BroadcastTo")


def find_sums(walk: Walk, batches: Mapping[str, str]) -> tuple[Summed, ...]:
    """The sums of a finished walk.

    Args:
        walk: the walk.
        batches: node -> the batch that it is computed of.

    Raises:
        GraphError: autodiff's part of one is not to be found, or a loss has an entry for each example, of which it is
            not proven that it is of that example alone.
    """
    view, made = walk.view, autodiff_ops(walk.known.captured)
    axes = _axes(walk)
    losses = trained_losses(walk)
    for loss in losses:
        if split_tensor(loss)[0] in batches and axes.of(loss) is not None:
            raise GraphError(_NOT_REDUCED.format(op=view.op(split_tensor(loss)[0]), loss=loss))
    trained, unproven = _sums_behind(walk, axes, set(losses))
    if mixed := sorted(node for node in unproven if is_of_vector_loss(view.nodes[node])):
        raise GraphError(_MIXED.format(op=view.op(mixed[0]), node=mixed[0]))
    found: list[Summed] = []
    for node in sorted(trained):
        if node not in batches:
            continue
        cotangents = _cotangents(walk, made, node)
        if not cotangents or _alike(walk, made, node) - trained:
            raise GraphError(
                f"A loss must be a mean over the batch where workers' batches may be uneven: {view.op(node)} {node!r} "
                "sums over the batch, and its gradient is not to be found. Divide by the batch's length (in Keras, "
                'reduction="sum_over_batch_size").'
            )
        taken = {edge for one in found for edge in one.cotangents}
        found.append(Summed(node, tuple(edge for edge in cotangents if edge not in taken), batches[node]))
    return tuple(found)


def trained_sums(walk: Walk) -> set[str]:
    """The nodes that take the sums over the batch that losses are made of; they are made to count in full."""
    return _sums_behind(walk, _axes(walk), set(trained_losses(walk)))[0]


def notes_of(walk: Walk, batches: Mapping[str, str]) -> tuple[str, ...]:
    """What the plan says of sums over what may or may not be of single examples, which nothing divides."""
    _, unproven = _sums_behind(walk, _axes(walk), set(trained_losses(walk)))
    return tuple(
        f"{walk.view.op(node)} {node!r} adds up what is not proven to be of single examples, and nothing divides it: "
        "it is taken for a mean over each worker's batch, and one process would add up what all workers have"
        for node in sorted(unproven & batches.keys())
    )


def is_counted_in_full(walk: Walk, term: str) -> bool:
    """Whether a term of a loss is a sum over the batch that counts in full, or several."""
    found, unproven = _sums_behind(walk, _axes(walk), {f"{term}:0"})
    return bool(found) and not unproven


def _axes(walk: Walk) -> BatchAxes:
    """How tensors lie along the batch; rows that a mask chooses do too, as a sum need not know how many there are."""
    made = autodiff_ops(walk.known.captured)
    return ChosenRows(walk, made, walk.view.nodes.keys() - made - walk.known.initial).with_chosen


def _sums_behind(walk: Walk, axes: BatchAxes, losses: Set[str]) -> tuple[set[str], set[str]]:
    """The nodes that take the sums over the batch, and others of which that is not proven."""
    view, found, unproven, seen = walk.view, set[str](), set[str](), set[str]()
    waiting = list(losses)
    while waiting:
        tensor = waiting.pop()
        node = split_tensor(tensor)[0]
        if node in seen or walk.states[tensor].kind in _EQUAL:
            continue
        seen.add(node)
        op, inputs = view.op(node), view.inputs(node)
        if is_weighed(walk, node):
            continue
        if op in ("Sum", "L2Loss") and axes.of(inputs[0]) is not None and axes.of(tensor) is None:
            found.add(node)
        elif sums_over_batch(axes, node):
            found.add(node)
        elif op in _PASSES or (op in ("Sum", "Mean") and _is_small(walk, inputs[0])):
            waiting.append(inputs[0])
        elif op in _ADDS:
            waiting += inputs
        elif op == "Mul":
            own = [t for t in inputs if walk.states[t].kind not in _EQUAL and not is_other_length(axes, t)]
            waiting += own if len(own) == 1 else []
        elif op in _DIVISIONS and not _is_put_together(walk, inputs[1]):
            is_alike = walk.states[inputs[1]].kind in _EQUAL or is_other_length(axes, inputs[1])
            waiting += inputs[:1] if is_alike else ()
        elif op in ("Sum", "L2Loss") and view.shape(tensor) == () and not _is_small(walk, inputs[0]):
            unproven.add(node)
    return found, unproven


def is_weighed(walk: Walk, node: str) -> bool:
    """Whether a product, or the elements of a sum, are multiplied with a quotient by what all workers have together."""
    view = walk.view
    if view.op(node) == "Sum":
        node = split_tensor(view.inputs(node)[0])[0]
    quotients = {edge.node for one in walk.assumed.denominators.divided for edge in one.edges if not one.is_mean}
    return view.op(node) == "Mul" and any(split_tensor(t)[0] in quotients for t in view.inputs(node))


def _is_small(walk: Walk, tensor: str) -> bool:
    """Whether a tensor has a known number of elements: scalars that were put together."""
    shape = walk.view.shape(tensor)
    return shape is not None and None not in shape


def _is_put_together(walk: Walk, tensor: str) -> bool:
    """Whether a loss is divided there by what was added up over the workers."""
    return any(tensor == one.tensor for one in walk.assumed.denominators.divided)


def _cotangents(walk: Walk, made: Set[str], node: str) -> tuple[Edge, ...]:
    """Where autodiff spreads what it has for a sum over what was summed."""
    view = walk.view
    if view.op(node) == "Einsum":
        return _of_products(walk, made, node)
    summed = view.inputs(node)[0]
    if view.op(node) == "L2Loss":
        return _of_squares(walk, made, summed)
    shapes = [e.node for e in view.takers(summed) if view.op(e.node) == "Shape" and e.node in made]
    spread = [e.node for n in shapes for e in view.takers(f"{n}:0") if view.op(e.node) in _SPREADS and e.slot == 1]
    kept = _kept_shape(walk, node)
    fits = [n for n in spread if kept is None or view.shape(view.inputs(n)[0]) in (kept, None)]
    others = {e.node for e in view.takers(summed) if view.op(e.node) in ("Sum", "Mean")} - made - {node}
    if not fits and not others:  # what is not known of the shape cannot be another reduction's
        fits = [n for n in spread if _may_be(view.shape(view.inputs(n)[0]), kept)]
    return tuple(Edge(n, 0) for n in dict.fromkeys(fits) if n in made and not _is_of_mean(walk, n))


def _alike(walk: Walk, made: Set[str], node: str) -> set[str]:
    """The nodes whose part of autodiff cannot be told from that of a sum: they add up one tensor along its axes."""
    view = walk.view
    takers = {e.node for e in view.takers(view.inputs(node)[0])} - made
    takers &= view.ancestors([split_tensor(loss)[0] for loss in trained_losses(walk)])
    alike = {n for n in takers if view.op(n) == view.op(node) != "Einsum"}
    return {n for n in alike if _kept_shape(walk, n) == _kept_shape(walk, node)}


def _kept_shape(walk: Walk, node: str) -> Shape:
    """The shape of a sum if it had all axes of what is summed; None where that is not to be seen."""
    view, inputs = walk.view, walk.view.inputs(node)
    shape, over = view.shape(inputs[0]), view.constant(inputs[1]) if inputs[1:] else None
    if shape is None or over is None:
        return None
    gone = {int(axis) % len(shape) for axis in over.reshape(-1)} if shape else set()
    return tuple(1 if axis in gone else length for axis, length in enumerate(shape))


def _may_be(shape: Shape, other: Shape) -> bool:
    """Whether two shapes may be one, where lengths of either are not known."""
    if shape is None or other is None:
        return True
    pairs = list(zip(shape, other, strict=False))
    return len(shape) == len(other) and all(None in pair or pair[0] == pair[1] for pair in pairs)


def _of_squares(walk: Walk, made: Set[str], summed: str) -> tuple[Edge, ...]:
    """Where autodiff multiplies what was squared by what it has for an L2Loss; by 2, it does so for a Square."""
    view, found = walk.view, []
    is_squared = any(view.op(edge.node) == "Square" for edge in view.takers(summed))
    for node in [e.node for e in view.takers(summed) if view.op(e.node) == "Mul" and e.node in made]:
        for slot, tensor in enumerate(view.inputs(node)):
            value = view.constant(tensor)
            if view.shape(tensor) == () and not (is_squared and value is not None and float(value) == 2.0):
                found.append(Edge(node, slot))
    return tuple(dict.fromkeys(found))


def _of_products(walk: Walk, made: Set[str], node: str) -> tuple[Edge, ...]:
    """Where autodiff multiplies what it has for a sum of products by each factor; none where other sums share one."""
    view, factors = walk.view, set(walk.view.inputs(node))
    takers = {e.node for factor in factors for e in view.takers(factor) if view.op(e.node) == "Einsum"}
    terms = {frozenset(term) for term in terms_of(view, node)}
    if view.shape(f"{node}:0") != () or takers - made != {node} or len(terms) != 1:
        return ()
    taken = [(n, slot, t) for n in sorted(takers & made) for slot, t in enumerate(view.inputs(n))]
    return tuple(Edge(n, slot) for n, slot, t in taken if t not in factors and view.shape(t) == ())


def _is_of_mean(walk: Walk, node: str) -> bool:
    """Whether what is spread is divided by a number of elements next, as autodiff does for a mean."""
    edges = walk.view.consumers(f"{node}:0")
    divided = [e for e in edges if walk.view.op(e.node) in _DIVISIONS and e.slot == 0]
    return any(walk.view.shape(walk.view.inputs(e.node)[1]) == () for e in divided)
