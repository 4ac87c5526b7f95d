"""Finds losses of examples that are moved along their own gradients, as training on adversarial examples does.

A mean over the batch has smaller gradients by single examples the more examples there are. Where these are added to
examples, each worker moves its own farther than one process would. The sign of such a gradient, or its direction for
each example by itself, does not depend on the length of the batch.
"""

from __future__ import annotations

from collections.abc import Set

from parallax.analysis.propagation.batch_axis import BatchAxes
from parallax.analysis.propagation.examples_apart import trained_losses
from parallax.analysis.propagation.walk import Walk
from parallax.analysis.reading.gradients import autodiff_ops
from parallax.graph.view import split_tensor

_PASSES = ("Identity", "StopGradient", "PreventGradient", "Neg", "Cast", "Reshape")
_SCALES = ("Mul", "RealDiv", "Div", "DivNoNan")
_ADDS = ("Add", "AddV2", "Sub")


def notes_of(walk: Walk) -> tuple[str, ...]:
    """What the plan says where gradients by examples are added to examples."""
    view, made = walk.view, autodiff_ops(walk.known.captured)
    needed = view.ancestors([split_tensor(loss)[0] for loss in trained_losses(walk)])
    if not made & needed:
        return ()
    axes, scaled = BatchAxes(view, walk.states), set[str]()
    for node in view.topological_order():
        op, inputs = view.op(node), view.inputs(node)
        if node not in needed or not inputs:
            continue
        own = [t for t in inputs if t in scaled]
        if op in _ADDS and own and node not in made and any(axes.of(t) is not None for t in inputs):
            return (
                f"{op} {node!r} adds to the examples of a batch what a mean over the batch has for gradients by them: "
                "each worker takes that over its own batch, and one process would take that over all workers' batches",
            )
        if _is_scaled(axes, node, scaled, node in made):
            scaled.update(t for t in view.outputs(node) if walk.states[t].kind != "same")
    return ()


def _is_scaled(axes: BatchAxes, node: str, scaled: Set[str], is_made: bool) -> bool:
    """Whether a node gives gradients of a mean over the batch, or such times a number."""
    view, op, inputs = axes.view, axes.view.op(node), axes.view.inputs(node)
    if is_made:
        is_divided = op in _SCALES[1:] and view.shape(inputs[1]) == () and not axes.fits(inputs[1])
        return is_divided or any(t in scaled for t in inputs)
    if op in _SCALES:
        others = [t for t in inputs if t not in scaled]
        return len(others) == 1 and (axes.fits(others[0]) or view.shape(others[0]) == ())
    return op in _PASSES and inputs[0] in scaled
