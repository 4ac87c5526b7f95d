"""Finds where the examples of a batch meet, so that a loss is no mean of what each example gives by itself.

Softmaxes over a batch's own negatives, ranks and maxima within it, pairs of neighbours: each worker computes them of
its own examples alone, and one process would compute them of all workers' together. No rewrite makes these equal, so
the plan names the op. What lies along the batch is proven (batch_axis.py), and so is what is a mean of it; the others
are followed back to where the proof ends. Means and sums that the plan speaks of already are left out.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from parallax.analysis.propagation.axis_meets import is_real, meets, reduces_batch
from parallax.analysis.propagation.axis_part import ALIKE, AxisPart
from parallax.analysis.propagation.batch_axis import BatchAxes
from parallax.analysis.propagation.op_lists import FORWARD_ELEMENTWISE
from parallax.analysis.propagation.walk import Walk
from parallax.graph.view import split_tensor

_SHOWN = 3
_OF_SHAPE = ("Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike")
_SUMS = ("Sum", "Mean", "L2Loss")
_STRAIGHT = (
    *("Identity", "Reshape", "Squeeze", "ExpandDims", "Cast", "CheckNumerics", "Snapshot", "PreventGradient", "Neg"),
    *("Add", "AddV2", "AddN", "Sub", "Mul", "RealDiv", "Div", "DivNoNan", "Pack", "StopGradient"),
)
"""What a loss is put together with of its parts."""
_DRAWS = (
    *("RandomUniform", "RandomUniformInt", "RandomStandardNormal", "TruncatedNormal"),
    *("StatelessRandomUniformV2", "StatelessRandomNormalV2", "StatelessTruncatedNormalV2"),
)
"""Their inputs say a shape and a seed, and no example."""


def notes_of(walk: Walk) -> tuple[str, ...]:
    """What the plan says of losses in which examples meet, and of those that have an element for each example."""
    found, _ = meetings(walk)
    axes = BatchAxes(walk.view, walk.states)
    sums = tuple(
        f"the loss {loss} has elements for each example of a batch, and gradients are of their sum: one process would "
        "take steps as many times as large as there are workers. Use reduce_mean"
        for loss in trained_losses(walk)
        if axes.of(loss) is not None
    )
    if not found:
        return sums
    return (
        *sums,
        f"examples of a batch meet at {_listed(walk, found)}: each worker lets those of its own batch meet, and one "
        "process would let those of all workers",
    )


def unproven_note(walk: Walk) -> str:
    """What is said of losses of which it is not proven that examples stay apart; empty where there is nothing."""
    _, unproven = meetings(walk)
    if not unproven:
        return ""
    return (
        f"It is not proven that the examples of a batch stay apart at {_listed(walk, unproven)}. Where they meet "
        "there, each worker lets those of its own batch meet, and one process would let those of all workers."
    )


def _listed(walk: Walk, nodes: Sequence[str]) -> str:
    listed = ", ".join(f"{walk.view.op(node)} {node!r}" for node in nodes[:_SHOWN])
    return listed + (f" and {len(nodes) - _SHOWN} more" if len(nodes) > _SHOWN else "")


def trained_losses(walk: Walk) -> list[str]:
    """What autodiff began at where it delivered gradients that variables are trained with."""
    trained = {source.values for source in walk.known.sources}
    records = [r for r in walk.known.captured.records if any(values in trained for _, values, _ in r.gradients)]
    return list(dict.fromkeys(tensor for record in records for tensor in record.of))


def meetings(walk: Walk) -> tuple[list[str], list[str]]:
    """The nodes of losses where examples meet, and the others at which the proof ends that they stay apart.

    Of what goes into them it is known how it lies along the batch, but not of what comes out.
    """
    losses = trained_losses(walk)
    view, axes = walk.view, BatchAxes(walk.view, walk.states).supposing(_drawn(walk))
    parts, told = _parts_of(walk, losses), _told(walk)
    needed = _needed(walk, axes, [split_tensor(loss)[0] for loss in losses])
    means, lost, told_of, found, unproven = set[str](), set[str](), set[str](), set[str](), set[str]()
    for node in view.topological_order():
        if node not in needed:
            continue
        inputs = [t for t in view.inputs(node) if t in walk.states]
        outputs = [t for t in view.outputs(node) if not axes.fits(t) and axes.of(t) is None]
        if not outputs:
            continue
        if node in told or told_of & set(inputs):
            told_of.update(outputs)
        elif means & set(inputs):
            (means if node in parts else told_of).update(outputs)
            found.update(split_tensor(t)[0] for t in inputs if t in means and node not in parts)
        elif lost & set(inputs) or any(axes.of(t) is not None for t in inputs):
            is_sum = view.op(node) in _SUMS and axes.of(inputs[0]) is not None
            if is_sum and node in parts:
                means.update(outputs)
            elif meets(axes, node, lost) or (is_sum and reduces_batch(axes, node)) or _is_curve(walk, node, lost):
                found.add(node)
                told_of.update(outputs)
            else:
                unproven.update(() if lost & set(inputs) else (node,))
                lost.update(outputs)
    return sorted(found), sorted(unproven)


def _is_curve(walk: Walk, node: str, lost: Set[str]) -> bool:
    """Whether a node bends a real scalar that the batch determines, in whatever way: a root of an error, a product."""
    view, op = walk.view, walk.view.op(node)
    scalars = [t for t in view.inputs(node) if t in lost and view.shape(t) == () and is_real(view, t)]
    if op in _STRAIGHT:
        return op == "Mul" and len(scalars) == 2
    return bool(scalars) and op in FORWARD_ELEMENTWISE and is_real(view, f"{node}:0")


def _drawn(walk: Walk) -> dict[str, AxisPart]:
    """Random numbers: one process draws as many for a larger batch, and as many samples."""
    found = {}
    for node in walk.view.nodes:
        op = walk.view.op(node)
        if op in _DRAWS:
            found[f"{node}:0"] = ALIKE
        elif op.endswith("CandidateSampler"):
            found |= {f"{node}:0": ALIKE, f"{node}:1": AxisPart(0), f"{node}:2": ALIKE}
    return found


def _parts_of(walk: Walk, losses: Sequence[str]) -> set[str]:
    """The nodes that give what losses are sums of, times or divided by something, and those sums."""
    view, found = walk.view, set[str]()
    waiting = [split_tensor(loss)[0] for loss in losses]
    while waiting:
        node = waiting.pop()
        if node in found:
            continue
        op, inputs = view.op(node), view.inputs(node)
        if op in _STRAIGHT or op in _SUMS:
            found.add(node)
        if op in _STRAIGHT or (op in _SUMS and (view.shape(inputs[0]) == () or _is_packed(walk, inputs[0]))):
            waiting += [split_tensor(t)[0] for t in inputs]
    return found


def _is_packed(walk: Walk, tensor: str) -> bool:
    """Whether a tensor is scalars in a row, as Keras adds up losses."""
    node = split_tensor(tensor)[0]
    return walk.view.op(node) == "Pack" and all(walk.view.shape(t) == () for t in walk.view.inputs(node))


def _needed(walk: Walk, axes: BatchAxes, losses: Sequence[str]) -> set[str]:
    """The nodes that losses are computed of, as far as it takes to see how their tensors lie along the batch."""
    view, found = walk.view, set(losses)
    waiting = list(losses)
    while waiting:
        node = waiting.pop()
        if view.op(node) in _OF_SHAPE or all(axes.fits(t) or axes.of(t) is not None for t in view.outputs(node)):
            continue
        new = {split_tensor(t)[0] for t in view.inputs(node)} - found
        found |= new
        waiting += new
    return {node for node in found if view.op(node) not in _OF_SHAPE}


def _told(walk: Walk) -> set[str]:
    """Nodes of which the plan says already what each worker takes of its own batch."""
    found = walk.assumed.denominators
    divisions = {node for node, _ in found.unproven}
    return {*divisions, *found.statistics, *found.unproven_means, *(one.node for one in found.selected)}
