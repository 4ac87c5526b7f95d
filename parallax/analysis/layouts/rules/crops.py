"""The layout rule of crops, which boxes cut out of the images of their own examples."""

from __future__ import annotations

from parallax.analysis.layouts.rules.elementwise import align
from parallax.analysis.layouts.rules.facts import REPLICATED, Fact
from parallax.analysis.layouts.rules.indexed_ops import find_numbers
from parallax.analysis.layouts.rules.step_walk import StepWalk
from parallax.plans.layouts import Sharded

_SLOTS = {
    "CropAndResize": (0, 2, (1,)),
    "CropAndResizeGradBoxes": (1, 3, (0, 2)),
    "CropAndResizeGradImage": (3, 2, (0, 1)),
}
"""Op -> its inputs: the images, or their shape; the image number of each box; what else each box has."""


def crop(step: StepWalk, node: str) -> list[Fact] | None:
    """CropAndResize and its gradients, where the image of each box is its example's; else images are gathered."""
    op, facts = step.view.op(node), step.inputs(node)
    images, counted, others = _SLOTS[op]
    is_shape = op == "CropAndResizeGradImage"
    dims = facts[images].complete_values() if is_shape else None
    part = step.part_of(dims[0]) if dims else facts[images].part
    boxes = facts[counted].part
    if part is None or boxes is None or (not is_shape and facts[images].axis != 0):
        return None
    numbers = find_numbers(step, step.view.inputs(node)[counted], part)
    if numbers is None or any(align(step, node, slot, facts[slot], 0, boxes).part != boxes for slot in others):
        return None
    step.require_layout(node, counted, numbers)
    if dims:
        step.localize(node, images, 0, dims)
        return step.all_outputs(node, Sharded(0, part), dims)
    for slot in range(4):
        if slot not in (images, counted, *others):
            step.require_layout(node, slot, REPLICATED)
    return step.all_outputs(node, Sharded(0, boxes))
