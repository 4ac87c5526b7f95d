"""Gradients that are taken, and variables that are updated, in each iteration of a loop: as in one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from parallax import Config
from parallax.analysis.graph_to_plan import analyse, plan_for, rewrites_of
from parallax.plans.plan import one_host
from tests.exactness.loss_trials import tried

pytestmark = pytest.mark.rotates(days=3)

v1 = tf.compat.v1
F = tf.float64
FEEDS = {"x": lambda rng, rows: rng.randn(rows, 3), "y": lambda rng, rows: rng.randint(0, 4, [rows])}


class Model:
    """A classifier of fed examples."""

    def __init__(self, rows: int | None) -> None:
        self.x, self.y = v1.placeholder(F, [rows, 3], name="x"), v1.placeholder(tf.int64, [rows], name="y")
        self.w = v1.get_variable("w", [3, 4], F, use_resource=True)
        self.b = v1.get_variable("b", [4], F, use_resource=True)
        self.table = v1.get_variable("table", [11, 3], F, use_resource=True)

    def loss(self, x: Any = None, rows: Any = slice(None)) -> Any:
        logits = tf.tanh((self.x if x is None else x)[rows] @ self.w) + self.b
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(logits=logits, labels=self.y[rows]))


def repeated(times: Any, step: Callable[[Any], Any]) -> Any:
    """A step that is taken several times in a run."""

    def body(number: Any) -> Any:
        with tf.control_dependencies([step(number)]):
            return number + 1

    return v1.group(tf.while_loop(lambda number: number < times, body, [0], parallel_iterations=1))


def by_adam(model: Model) -> Any:
    rule = v1.train.AdamOptimizer(0.1)
    return repeated(3, lambda _: rule.minimize(model.loss()))


def clipped(model: Model) -> Any:
    def step(_: Any) -> Any:
        found, _ = tf.clip_by_global_norm(tf.gradients(model.loss(), [model.w, model.b]), 0.1)
        return v1.group(model.w.assign_sub(found[0]), model.b.assign_sub(found[1]))

    return repeated(3, step)


def penalized(model: Model) -> Any:
    """A critic's steps before a generator's."""

    def step(number: Any) -> Any:
        between = model.x * tf.sin(tf.cast(number, F) + model.x[:, :1])
        judged = lambda made: tf.reduce_sum(tf.tanh(made @ model.w) * model.b, 1)  # noqa: E731
        slopes = tf.gradients(judged(between), [between])[0]
        penalty = tf.reduce_mean(tf.square(tf.sqrt(tf.reduce_sum(slopes * slopes, 1) + 1e-6) - 1.0))
        loss = tf.reduce_mean(judged(model.x) - judged(model.x * model.x)) + 10.0 * penalty
        found = tf.gradients(loss, [model.w, model.b])
        return v1.group(model.w.assign_sub(0.1 * found[0]), model.b.assign_sub(0.1 * found[1]))

    with tf.control_dependencies([repeated(3, step)]):
        loss = model.loss(tf.gather(model.table, model.y))
        return v1.train.GradientDescentOptimizer(0.1).minimize(loss, var_list=[model.table])


def by_statistics(model: Model) -> Any:
    """Statistics of the batch, in each step, and their moving average."""
    moving = v1.get_variable("moving", [3], F, use_resource=True, trainable=False)

    def step(_: Any) -> Any:
        mean, variance = tf.nn.moments(model.x * model.b[:3], [0])
        found = tf.gradients(model.loss((model.x - mean) / tf.sqrt(variance + 1e-3)), [model.w, model.b])
        kept = moving.assign(0.9 * moving + 0.1 * mean)
        return v1.group(model.w.assign_sub(0.1 * found[0]), model.b.assign_sub(0.1 * found[1]), kept)

    return repeated(3, step)


def as_often_as_the_batch_says(model: Model) -> Any:
    times = tf.cast(tf.reduce_sum(model.y) % 3 + 1, tf.int32)
    return repeated(times, lambda _: model.w.assign_sub(0.1 * tf.gradients(model.loss(), [model.w])[0]))


def by_a_branch(model: Model) -> Any:
    def step(_: Any) -> Any:
        loss = model.loss()
        (found,) = tf.gradients(loss, [model.w])
        return tf.cond(loss > 0.8, lambda: model.w.assign_sub(0.3 * found), lambda: model.w.assign_sub(0.1 * found))

    return repeated(4, step)


def through_a_loop(model: Model) -> Any:
    def step(_: Any) -> Any:
        state = tf.zeros([tf.shape(model.x)[0], 4], F)
        turn = lambda t, s: (t + 1, tf.tanh(s + model.x[:, t : t + 1] * model.b))  # noqa: E731
        _, state = tf.while_loop(lambda t, _: t < 3, turn, [0, state])
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(logits=state, labels=model.y))
        return model.b.assign_sub(0.3 * tf.gradients(loss, [model.b])[0])

    return repeated(3, step)


def applied_after_the_loop(model: Model) -> Any:
    def turn(number: Any, *sums: Any) -> Any:
        found = tf.gradients(model.loss(model.x * tf.cast(number + 1, F)), [model.w, model.b])
        return (number + 1, *(total + one for total, one in zip(sums, found, strict=True)))

    variables = [model.w, model.b]
    _, *sums = tf.while_loop(lambda number, *_: number < 4, turn, [0, *map(tf.zeros_like, variables)])
    return v1.train.AdamOptimizer(0.1).apply_gradients(zip([one / 4.0 for one in sums], variables, strict=True))


def of_rows(model: Model) -> Any:
    rule = v1.train.AdagradOptimizer(0.1)
    return repeated(3, lambda _: rule.minimize(model.loss(tf.gather(model.table, model.y) + model.x)))


def of_each_example(model: Model) -> Any:
    """A step for each example of the batch."""

    def step(number: Any) -> Any:
        loss = model.loss(rows=slice(number, number + 1))
        return model.w.assign_sub(0.1 * tf.gradients(loss, [model.w])[0])

    return repeated(tf.shape(model.x)[0], step)


def of_all_pairs(model: Model) -> Any:
    def step(_: Any) -> Any:
        found = tf.tanh(model.x @ model.w)
        labels = tf.range(tf.shape(model.x)[0])
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(logits=found @ tf.transpose(found), labels=labels)
        return model.w.assign_sub(0.1 * tf.gradients(tf.reduce_mean(loss), [model.w])[0])

    return repeated(3, step)


def fisher_information(model: Model) -> Any:
    """The squared gradients of each example's likelihood, which weigh how far the weights may move later."""
    weights = v1.get_variable("weights", [3, 4], F, use_resource=True, trainable=False)

    def of_example(example: Any) -> Any:
        likelihoods = tf.nn.log_softmax(example[0][None] @ model.w)[0]
        return tf.square(tf.gradients(tf.gather(likelihoods, example[1]), [model.w])[0])

    found = tf.reduce_mean(tf.map_fn(of_example, (model.x, model.y), dtype=F), 0)
    loss = model.loss() + tf.reduce_sum(weights * tf.square(model.w))
    return [v1.train.GradientDescentOptimizer(0.1).minimize(loss), weights.assign(found).op]


REDUCED = [
    *(by_adam, clipped, penalized, by_statistics, as_often_as_the_batch_says, by_a_branch, through_a_loop),
    *(applied_after_the_loop, fisher_information),
]
GATHERED = [of_rows, of_each_example, of_all_pairs]


@pytest.mark.parametrize("control_flow_v2", [True, False])
@pytest.mark.parametrize("steps", [*REDUCED, *GATHERED])
def test_gradients_of_a_loop_s_iterations_are_those_of_the_global_batch(steps: Any, control_flow_v2: bool) -> None:
    build = lambda rows: steps(Model(rows))  # noqa: E731
    found = tried(build, FEEDS, dtype="float64", control_flow_v2=control_flow_v2)
    assert (found.kind, found.message, bool(found.gathers)) == ("equal", "", steps in GATHERED)


@pytest.mark.parametrize("steps", [by_adam, by_statistics])
def test_a_worker_without_examples_takes_the_steps_of_a_loop_too(steps: Any) -> None:
    found = tried(lambda rows: steps(Model(rows)), FEEDS, dtype="float64", rows=1)
    assert (found.kind, found.message) == ("equal", "")


def test_numbers_drawn_in_a_loop_s_steps_are_each_example_s_or_equal() -> None:
    def step(model: Model) -> Any:
        kept = tf.random.uniform(tf.shape(model.x), dtype=F, name="of_examples")
        noise = tf.random.normal([3, 4], dtype=F, name="of_weights")
        return model.w.assign_sub(tf.gradients(model.loss(model.x * kept), [model.w])[0] + noise)

    graph = tf.Graph()
    with graph.as_default():
        model = Model(None)
        repeated(3, lambda _: step(model))
    analysed = analyse(graph)
    drawn = rewrites_of(analysed, plan_for(analysed, one_host(2), Config()), False).equal_random_ops
    assert [name for name in drawn if "of_" in name] == ["while/lowered/body/of_weights/RandomStandardNormal"]
