"""Gradients within a loss that is taken for a mean are each worker's own: what is averaged, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from parallax.analysis.graph_to_plan import analyse, make_feasible_plan, rewrites_of
from parallax.analysis.reading.construction import record
from parallax.base.errors import GraphError
from parallax.plans.plan import PlanConstraints, one_host
from tests.equality import gradient_models

v1 = tf.compat.v1
record.install()


def averaged(build: Any, accumulate_steps: int = 1) -> list[str]:
    """The tensors that are averaged over two workers."""
    graph = tf.Graph()
    with graph.as_default(), v1.variable_scope("", use_resource=True):
        build()
    analysed = analyse(graph, layouts=False)
    constraints = PlanConstraints(accumulate_steps=accumulate_steps)
    return [
        a.tensor
        for a in rewrites_of(analysed, make_feasible_plan(analysed, one_host(2), constraints)).all_reduces
        if a.kind == "mean"
    ]


def loss_of(w: Any, features: Any = None) -> Any:
    x = v1.placeholder(tf.float32, [6, 3]) if features is None else features
    return tf.reduce_mean(tf.square(tf.tanh(x @ w)))


def train(loss: Any, *variables: Any) -> None:
    v1.train.GradientDescentOptimizer(0.1).minimize(loss, var_list=list(variables) or None)


def test_the_gradients_of_a_loss_after_a_step_are_averaged_and_those_of_the_step_are_not() -> None:
    assert averaged(lambda: gradient_models.adapted(6, 1)) == ["gradients_1/AddN_2:0", "gradients_1/AddN_3:0"]
    assert averaged(lambda: gradient_models.adapted(6, 2)) == ["gradients_2/AddN_6:0", "gradients_2/AddN_7:0"]


def test_a_gradient_by_inputs_is_not_averaged() -> None:
    assert len(averaged(lambda: gradient_models.gradient_penalty(6, False))) == 2


def test_a_gradient_that_a_function_goes_back_through_is_the_worker_s_own() -> None:
    def build() -> None:
        w, x = v1.get_variable("w", [3, 1]), v1.placeholder(tf.float32, [6, 3])
        (slope,) = tf.gradients(loss_of(w, x), [w])
        after = tf.function(lambda x: tf.gradients(loss_of(w - slope, x), [w])[0])
        v1.assign_sub(w, after(x))

    assert len(averaged(build)) == 1


def test_gradients_of_no_batch_are_not_averaged() -> None:
    def build() -> None:
        w = v1.get_variable("w", [3, 1])
        (slope,) = tf.gradients(tf.nn.l2_loss(tf.square(w)), [w])
        train(loss_of(w) + tf.nn.l2_loss(slope))

    assert len(averaged(build)) == 1


def _in_a_loop() -> None:
    w = v1.get_variable("w", [3, 1])
    x = v1.placeholder(tf.float32, [6, 3])
    step = lambda i, at: (i + 1, at - tf.gradients(loss_of(w, x), [w])[0])  # noqa: E731
    train(loss_of(tf.while_loop(lambda i, _: i < 2, step, [0, w])[1], x))


def _hessian() -> None:
    w = v1.get_variable("w", [3, 1])
    loss = loss_of(w)
    (second,) = tf.hessians(loss, [w])
    v1.assign_sub(w, tf.gradients(loss, [w])[0] / (1.0 + tf.reshape(tf.linalg.diag_part(second[:, 0, :, 0]), [3, 1])))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (_in_a_loop, "While 'while' takes a gradient of 'w' inside a loop or a conditional"),
        (_hessian, "inside a loop or a conditional, .*instead of tf.hessians, use products"),
    ],
)
def test_a_gradient_that_a_loop_takes_is_refused_with_a_remedy(build: Any, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        averaged(build)


def test_gradients_of_a_loss_after_a_step_are_kept_over_batches_like_any() -> None:
    assert len(averaged(lambda: gradient_models.adapted(6, 1), accumulate_steps=2)) == 2


def test_a_gradient_that_a_conditional_gives_is_refused() -> None:
    def build() -> None:
        w, step = v1.get_variable("w", [3, 1]), v1.train.get_or_create_global_step()
        x = v1.placeholder(tf.float32, [6, 3])
        train(loss_of(w, x))
        v1.assign_sub(w, tf.cond(step > 3, lambda: tf.gradients(loss_of(w, x), [w])[0], lambda: tf.zeros([3, 1])))

    with pytest.raises(
        GraphError, match="If 'cond' takes a gradient of 'w' inside a loop or a conditional.* Take the gradient before"
    ):
        averaged(build)
