"""Proves that a value is the mean over a worker's batch, of which the mean over the workers is the one process's.

Variables that training reads and that batches write, as the averages do by which features are normalised, take that.
What is proven is a mean along the axis on which batches are joined, or is computed of such means in a linear way.
"""

from __future__ import annotations

from parallax.analysis.batch_axis import BatchAxes
from parallax.analysis.states import SAME
from parallax.analysis.walk import Walk
from parallax.graph_view import split_tensor

_PASSES = ("Identity", "StopGradient", "Reshape", "Squeeze", "ExpandDims", "Neg", "Snapshot")
_SOURCES = ("Placeholder", "IteratorGetNext", "QueueDequeue", "ReaderRead")
_SUMS = ("Add", "AddV2", "AddN", "Sub")
_FIRST_OVER_EQUAL = ("RealDiv", "Div", "DivNoNan")


def is_batch_mean(walk: Walk, tensor: str) -> bool:
    """Whether the mean of a tensor over workers with batches of one size is the one process's value."""
    view, axes = walk.view, BatchAxes(walk.view, walk.states)
    waiting, seen = [tensor], set[str]()
    while waiting:
        one = waiting.pop()
        node = split_tensor(one)[0]
        if one in seen or walk.states[one] == SAME:
            continue
        seen.add(one)
        op, inputs = view.op(node), view.inputs(node)
        if op == "Mean":
            if not _is_over_batch(axes, node):
                return False
        elif op in _SUMS:
            waiting += inputs
        elif op in _PASSES:
            waiting.append(inputs[0])
        elif op == "Mul" and SAME in (walk.states[t] for t in inputs):
            waiting += inputs
        elif op in _FIRST_OVER_EQUAL and walk.states[inputs[1]] == SAME:
            waiting.append(inputs[0])
        else:
            return False
    return True


def may_keep_rows(walk: Walk, variable: str) -> bool:
    """Whether a variable can have an entry for each row of a worker's batch, as the state between two batches has.

    A scalar cannot, nor can a vector that is no fixed batch's length.
    """
    shape, view = walk.captured.variables[variable].part.shape, walk.view
    if shape is None or len(shape) > 1:
        return True
    sources = [view.shape(t) for node in view.nodes if _is_source(walk, node) for t in view.outputs(node)]
    return bool(shape) and any(source is not None and shape[0] in source[:1] for source in sources)


def depends_on_batch(walk: Walk, tensor: str) -> bool:
    """Whether a value is computed of what is fed or comes from a pipeline; else it is drawn, or counted."""
    if walk.states[tensor] == SAME:
        return False
    return any(_is_source(walk, node) for node in walk.view.ancestors([split_tensor(tensor)[0]]))


def _is_source(walk: Walk, node: str) -> bool:
    return walk.view.op(node).startswith(_SOURCES) and walk.view.shape(f"{node}:0") != ()


def _is_over_batch(axes: BatchAxes, node: str) -> bool:
    values, over = axes.view.inputs(node)
    axis, shape, gone = axes.of(values), axes.shape(values), axes.constant(over)
    if axis is None or shape is None or gone is None:
        return False
    return max(axis, 0) in {int(a) % len(shape) for a in gone.reshape(-1)}
