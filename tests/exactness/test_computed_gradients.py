"""Scripts that compute the gradients of their examples without autodiff, and write them themselves."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from tests.exactness.loss_trials import tried

v1 = tf.compat.v1
F = tf.float64


def over_deviations(of_examples: Any, w: Any) -> Any:
    mean, variance = tf.nn.moments(of_examples, 0)
    return w.assign_sub(0.1 * mean / tf.sqrt(variance + 0.1))


def clipped(of_examples: Any, w: Any) -> Any:
    return w.assign_sub(0.1 * tf.reduce_mean(tf.clip_by_norm(of_examples, 1.0, axes=[1]), 0))


def decayed(of_examples: Any, w: Any) -> Any:
    return w.assign(0.9 * w - 0.1 * tf.reduce_mean(of_examples, 0))


def by_signs(of_examples: Any, w: Any) -> Any:
    return w.assign_add(-0.1 * tf.sign(tf.reduce_sum(of_examples, 0)))


def as_it_is(of_examples: Any, w: Any) -> Any:
    return w.assign_sub(tf.reduce_mean(of_examples, 0))


def by_an_optimizer(of_examples: Any, w: Any) -> Any:
    rule = v1.train.AdamOptimizer(0.05, epsilon=1e-3)
    return v1.group(rule.apply_gradients([(tf.reduce_mean(of_examples, 0), w)]), name="train")


def by_momentum(of_examples: Any, w: Any) -> Any:
    momentum = v1.get_variable("momentum", [6], F, use_resource=True, trainable=False)
    return w.assign_sub(0.1 * momentum.assign(0.9 * momentum + tf.reduce_mean(of_examples, 0)))


@pytest.mark.parametrize("write", [over_deviations, clipped, decayed, by_signs, as_it_is, by_an_optimizer, by_momentum])
def test_what_a_script_writes_from_its_examples_is_of_the_global_batch(write: Any) -> None:
    def build(rows: int | None) -> Any:
        x, y = v1.placeholder(F, [rows, 6], name="x"), v1.placeholder(F, [rows], name="y")
        w = v1.get_variable("w", [6], F, use_resource=True)
        found = write(x * (tf.linalg.matvec(x, w) - y)[:, None], w)
        return getattr(found, "op", found)

    feeds = {"x": lambda rng, rows: rng.randn(rows, 6), "y": lambda rng, rows: rng.randn(rows)}
    found = tried(build, feeds, dtype="float64")
    assert (found.kind, found.message, found.gathers, found.notes) == ("equal", "", (), ())
