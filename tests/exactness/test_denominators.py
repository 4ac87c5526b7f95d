"""Losses over what a mask leaves of the batch are those of the joined one, whatever the mask and however it counts."""

from __future__ import annotations

import pytest

from ops.exactness.trial import try_program
from tests.exactness.test_curved_means import PROGRAM

EACH = "tf.reduce_sum(tf.square(out - y), 1)"
KEPT = "y[:, 0] > -0.5"
NEAR = "out[:, 0] > -0.1"
"""Depends on the trained variables, and has no gradient by them."""
LOSSES = {
    "a mean of what is near": f"tf.reduce_mean(tf.boolean_mask({EACH}, {NEAR}))",
    "a mean of what is near, added": f"error + 0.1 * tf.reduce_mean(tf.boolean_mask(out, {NEAR}))",
    "a sum by a count": f"tf.reduce_sum(tf.boolean_mask({EACH}, {KEPT})) / tf.cast(tf.math.count_nonzero({KEPT}), F)",
    "a sum by a length": (
        f"tf.reduce_sum(tf.boolean_mask({EACH}, {KEPT})) / tf.cast(tf.shape(tf.boolean_mask(y, {KEPT}))[0], F)"
    ),
    "a sum by a size": (
        f"tf.reduce_sum(tf.boolean_mask({EACH}, {KEPT})) / tf.cast(tf.size(tf.boolean_mask(y, {KEPT})), F)"
    ),
    "a sum by how many are near": (
        f"tf.reduce_sum({EACH} * tf.cast({NEAR}, F)) / (1e-3 + tf.reduce_sum(tf.cast({NEAR}, F)))"
    ),
    "a sum by weights without a gradient": (
        f"tf.reduce_sum({EACH}) / (0.1 + tf.reduce_sum(tf.stop_gradient(tf.square(out[:, 0]))))"
    ),
    "products by weights": "tf.einsum('bi,bi->', tf.square(out - y), tf.abs(y)) / tf.reduce_sum(tf.abs(y))",
    "a quotient that a function gives": (
        f"tf.function(lambda e, k: tf.reduce_sum(e * k) / tf.reduce_sum(k))({EACH}, tf.cast({KEPT}, F))"
    ),
    "the root of a quotient that a function within another gives": (
        "tf.function(lambda e, k: tf.sqrt(tf.function(lambda a, b: tf.reduce_sum(a * b) / tf.reduce_sum(b))(e, k)))"
        f"({EACH}, tf.cast({KEPT}, F))"
    ),
    "a mean of what a function chooses": (
        f"tf.function(lambda e, k: tf.reduce_mean(tf.boolean_mask(e, k)))({EACH}, {KEPT})"
    ),
    "the root of a mean that a function gives": f"tf.function(lambda e: tf.sqrt(tf.reduce_mean(e)))({EACH})",
}


@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_over_a_mask_is_that_of_the_joined_batch(loss: str) -> None:
    (outcome,) = try_program(PROGRAM.format(loss=LOSSES[loss]), ["hybrid"], layouts=False).values()
    assert (outcome.kind, outcome.message) == ("equal", "")
