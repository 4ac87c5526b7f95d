"""Pass: gives a front end's run its micro-batch's share of the step's examples, as the weight of values that add up.

The caller that splits a step feeds the share; a run without a fed share has its whole batch, and a share of 1.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from parallax.base.types import Tensor
from parallax.graph.view import node_of
from parallax.plans.rewrites import Rewrites
from parallax.transform.building.editor import SCOPE, Editor


def weigh_micro_batches(editor: Editor, rewrites: Rewrites) -> None:
    """Weights results, terms of sums, and values added to variables by the share of their micro-batch."""
    for one in rewrites.micro_batches:
        with tf.name_scope(f"{SCOPE}/micro_batch/"):
            editor.micro_batch_weight = tf.compat.v1.placeholder_with_default(np.float64(1.0), [], name="share")
            for weighed in one.weighed:
                editor.redirect([weighed.edge], weigh(editor, editor.at(weighed.edge), weighed.power))
            for result in one.results:
                _hand_on_at_once(editor, result.tensor)
                if result.power:
                    tensor = editor.full_tensors.get(result.tensor, result.tensor)
                    value = _find_tensor(editor, tensor) if tensor.startswith(f"{SCOPE}/") else editor.tensor(tensor)
                    counted = weigh(editor, value, result.power)
                    editor.redirect(editor.view.consumers(result.tensor), counted)
                    editor.full_tensors[result.tensor] = str(counted.name)


def weigh(editor: Editor, tensor: Tensor, power: float) -> Tensor:
    """A tensor times a power of the share."""
    assert editor.micro_batch_weight is not None, "a step is cut"
    return tensor * tf.cast(editor.micro_batch_weight**power, tensor.dtype) if power else tensor


def _hand_on_at_once(editor: Editor, tensor: str) -> None:
    """Removes a result's dependency on the rest of the step: every micro-batch has it, only the last one updates."""
    view, node = editor.view, node_of(tensor)
    while view.op(node) == "Identity":
        for control in view.controls(node):
            editor.waits_for[node, control] = None
        node = node_of(view.inputs(node)[0])


def _find_tensor(editor: Editor, name: str) -> Tensor:
    """A tensor that a pass has made."""
    return editor.scratch.get_tensor_by_name(name)
