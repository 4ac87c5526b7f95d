"""Finds sums over the batch that losses are made of and that nothing divides, as `reduction="sum"` leaves them.

The one process has the sum of all workers' sums, of which a mean over the workers is a W-th. Losses are followed back
through what keeps a sum a sum: sums of scalars, products and quotients with what all workers have alike. Looked for
where the graph says that batches may be uneven (uneven.py); in other graphs a worker's loss is what the script says.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from parallax.analysis.propagation.batch_axis import BatchAxes
from parallax.analysis.propagation.examples_apart import trained_losses
from parallax.analysis.propagation.lengths import is_other_length
from parallax.analysis.propagation.walk import Walk
from parallax.analysis.reading.gradients import autodiff_ops
from parallax.errors import GraphError
from parallax.graph.batches import reported_values
from parallax.graph.view import Edge, split_tensor
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
_EQUAL = ("same", "fed")
_SPREADS = ("Tile", "BroadcastTo")


def find_sums(walk: Walk, batches: Mapping[str, str]) -> tuple[Summed, ...]:
    """The sums of a finished walk.

    Args:
        walk: the walk.
        batches: node -> the batch that it is computed of.

    Raises:
        GraphError: autodiff's part of one is not to be found, or a loss has an entry for each example.
    """
    view, made = walk.view, autodiff_ops(walk.known.captured)
    axes = BatchAxes(view, walk.states)
    losses = trained_losses(walk)
    for loss in losses:
        if split_tensor(loss)[0] in batches and axes.of(loss) is not None:
            raise GraphError(_NOT_REDUCED.format(op=view.op(split_tensor(loss)[0]), loss=loss))
    trained = _sums_behind(walk, axes, set(losses))
    found = []
    for node in sorted(trained | _sums_behind(walk, axes, set(reported_values(view)))):
        if node not in batches:
            continue
        cotangents = _cotangents(walk, made, node)
        if node in trained and not cotangents:
            raise GraphError(
                f"A loss must be a mean over the batch where workers' batches may be uneven: {view.op(node)} {node!r} "
                "sums over the batch, and its gradient is not to be found. Divide by the batch's length (in Keras, "
                'reduction="sum_over_batch_size").'
            )
        found.append(Summed(node, cotangents, batches[node]))
    return tuple(found)


def _sums_behind(walk: Walk, axes: BatchAxes, losses: Set[str]) -> set[str]:
    """The nodes that take the sums over the batch."""
    view, found, seen = walk.view, set[str](), set[str]()
    waiting = list(losses)
    while waiting:
        tensor = waiting.pop()
        node = split_tensor(tensor)[0]
        if node in seen or walk.states[tensor].kind in _EQUAL:
            continue
        seen.add(node)
        op, inputs = view.op(node), view.inputs(node)
        if op in ("Sum", "L2Loss") and axes.of(inputs[0]) is not None and axes.of(tensor) is None:
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
    return found


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
    summed = view.inputs(node)[0]
    shapes = [e.node for e in view.takers(summed) if view.op(e.node) == "Shape" and e.node in made]
    spread = [e.node for n in shapes for e in view.takers(f"{n}:0") if view.op(e.node) in _SPREADS and e.slot == 1]
    if view.op(node) == "L2Loss":
        spread = [e.node for e in view.takers(summed) if view.op(e.node) == "Mul" and e.node in made]
        own = [(n, t) for n in spread for t in enumerate(view.inputs(n)) if view.shape(t[1]) == ()]
        return tuple(Edge(n, slot) for n, (slot, _) in own)
    return tuple(Edge(n, 0) for n in dict.fromkeys(spread) if n in made and not _is_of_mean(walk, n))


def _is_of_mean(walk: Walk, node: str) -> bool:
    """Whether what is spread is divided by a number of elements next, as autodiff does for a mean."""
    edges = walk.view.consumers(f"{node}:0")
    divided = [e for e in edges if walk.view.op(e.node) in _DIVISIONS and e.slot == 0]
    return any(walk.view.shape(walk.view.inputs(e.node)[1]) == () for e in divided)
