"""Every writer of a variable is found, in branches, loops and functions; what may differ is not called equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from parallax.analysis.graph_to_plan import AnalysedGraph, analyse, plan_for, rewrites_of
from parallax.base.errors import GraphError
from parallax.graph.spec import VariableClass
from parallax.plans.plan import one_host
from parallax.settings.config import Config

v1 = tf.compat.v1
KINDS = [(True, True), (False, True), (False, False)]
"""(Conditionals of the new kind, resource variables): TensorFlow makes no updates of references in the new kind."""


def analysed(build: Callable[[], Any], new: bool = True, resource: bool = True) -> AnalysedGraph:
    graph = tf.Graph()
    try:
        (v1.enable_control_flow_v2 if new else v1.disable_control_flow_v2)()
        with graph.as_default(), v1.variable_scope("", use_resource=resource):
            build()
    finally:
        v1.enable_control_flow_v2()
    return analyse(graph, layouts=False)


def class_of(found: AnalysedGraph, name: str) -> VariableClass:
    return found.spec.variable(name).cls


def model() -> tuple[Any, Any]:
    """A dense weight and the loss of a batch."""
    x = v1.placeholder(tf.float32, [None, 3], name="x")
    w = v1.get_variable("w", [3, 1])
    return w, tf.reduce_mean(tf.square(x @ w - 1.0))


@pytest.mark.parametrize(("new", "resource"), KINDS)
def test_an_update_that_each_worker_decides_on_by_itself_is_refused(new: bool, resource: bool) -> None:
    def build() -> None:
        w, loss = model()
        made = v1.train.GradientDescentOptimizer(0.1)
        pairs = made.compute_gradients(loss)
        first = v1.get_default_graph().get_tensor_by_name("x:0")[0, 0]
        tf.cond(first < 50.0, lambda: made.apply_gradients(pairs), tf.no_op)

    with pytest.raises(GraphError, match="updates variable 'w' only if 'Less:0', which depends on each worker"):
        analysed(build, new, resource)


@pytest.mark.parametrize(("new", "resource"), KINDS)
def test_a_variable_that_each_worker_decides_to_write_is_its_own(new: bool, resource: bool) -> None:
    def build() -> None:
        _, loss = model()
        v1.train.GradientDescentOptimizer(0.1).minimize(loss)
        seen = v1.get_variable("seen", [], initializer=v1.zeros_initializer(), trainable=False)
        tf.cond(loss < 50.0, lambda: tf.group(v1.assign(seen, 1.0)), tf.no_op)

    assert class_of(analysed(build, new, resource), "seen") == VariableClass.LOCAL


def test_a_write_in_a_loop_that_takes_the_batch_is_each_workers_own() -> None:
    def build() -> None:
        _, loss = model()
        v1.train.GradientDescentOptimizer(0.1).minimize(loss)
        total = v1.get_variable("total", [], initializer=v1.zeros_initializer(), trainable=False)

        def body(i: Any) -> Any:
            with v1.control_dependencies([total.assign_add(loss)]):
                return [i + 1]

        tf.while_loop(lambda i: i < 3, body, [tf.constant(0)])

    assert class_of(analysed(build), "total") == VariableClass.LOCAL


def test_a_trained_variable_written_in_a_loop_that_takes_the_batch_is_refused() -> None:
    def build() -> None:
        w, loss = model()
        v1.train.GradientDescentOptimizer(0.1).minimize(loss)

        def body(i: Any) -> Any:
            with v1.control_dependencies([w.assign_add(tf.ones([3, 1]) * loss)]):
                return [i + 1]

        tf.while_loop(lambda i: i < 3, body, [tf.constant(0)])

    with pytest.raises(GraphError, match="While 'while' writes variable 'w' in its body"):
        analysed(build)


def test_random_numbers_in_the_body_of_a_loop_are_each_workers_own() -> None:
    def build() -> None:
        _, loss = model()
        v1.train.GradientDescentOptimizer(0.1).minimize(loss)
        drawn = tf.while_loop(lambda i, _: i < 3, lambda i, t: (i + 1, t + tf.random.uniform([])), [0, 0.0])[1]
        v1.assign(v1.get_variable("drawn", [], initializer=v1.zeros_initializer(), trainable=False), drawn)

    assert class_of(analysed(build), "drawn") == VariableClass.LOCAL


def test_a_constant_of_a_branch_is_as_its_predicate() -> None:
    def build() -> None:
        _, loss = model()
        v1.train.GradientDescentOptimizer(0.1).minimize(loss)
        chosen = tf.cond(loss < 1.0, lambda: tf.constant(1.0), lambda: tf.constant(2.0))
        v1.assign_add(v1.get_variable("total", [], initializer=v1.zeros_initializer(), trainable=False), chosen)

    for new in (True, False):
        assert class_of(analysed(build, new), "total") == VariableClass.LOCAL


def test_what_is_read_from_a_path_that_is_fed_is_each_workers_own_data() -> None:
    def build() -> None:
        path = v1.placeholder(tf.string, [], name="path")
        x = tf.reshape(tf.io.decode_raw(tf.io.read_file(path), tf.float32), [-1, 6])
        w = v1.get_variable("w", [6, 1])
        v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(tf.square(x @ w - 1.0)))

    found = analysed(build)
    reduced = rewrites_of(found, plan_for(found, one_host(2), Config())).all_reduces
    assert [one.kind for one in reduced] == ["mean"]


def _normalised(statistic: Callable[[Any], Any], reads: bool = True) -> Callable[[], None]:
    """Features are normalised by an average over past batches, or would be where it is not read."""

    def build() -> None:
        x = v1.placeholder(tf.float32, [None, 3], name="x")
        w = v1.get_variable("w", [3, 1])
        past = v1.get_variable("past", [3], initializer=v1.zeros_initializer(), trainable=False)
        before = past.read_value()
        loss = tf.reduce_mean(tf.square((x - before if reads else x) @ w - 1.0))
        train = v1.train.GradientDescentOptimizer(0.1).minimize(loss)
        tf.group(train, v1.assign_sub(past, 0.1 * (before - statistic(x))))

    return build


@pytest.mark.parametrize(
    "statistic",
    [lambda x: tf.reduce_mean(x, 0), lambda x: tf.reduce_max(x, 0), lambda x: tf.sort(x, 0)[1], lambda x: x[0]],
)
def test_a_statistic_of_each_worker_s_own_batch_that_training_reads_is_refused(
    statistic: Callable[[Any], Any],
) -> None:
    with pytest.raises(
        GraphError,
        match="depend on 'past', but .*'AssignSubVariableOp' writes it with 'mul.*:0', which each worker computes",
    ):
        analysed(_normalised(statistic))


def test_a_statistic_of_what_a_queue_gives_batch_by_batch_is_refused() -> None:
    def build() -> None:
        queue = v1.FIFOQueue(4, [tf.float32])
        queue.enqueue(v1.placeholder(tf.float32, [None, 3], name="x"))
        x = tf.ensure_shape(queue.dequeue(), [None, 3])
        past = v1.get_variable("past", [3], initializer=v1.zeros_initializer(), trainable=False)
        before, w = past.read_value(), v1.get_variable("w", [3, 1])
        train = v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(tf.square((x - before) @ w)))
        tf.group(train, v1.assign_sub(past, 0.1 * (before - tf.reduce_max(x, 0))))

    with pytest.raises(
        GraphError, match="depend on 'past', but .* writes it with 'mul.*:0', which each worker computes"
    ):
        analysed(build)


def test_a_statistic_that_training_does_not_read_is_the_workers_own() -> None:
    assert class_of(analysed(_normalised(lambda x: tf.reduce_mean(x, 0), reads=False)), "past") == VariableClass.LOCAL


def test_what_is_kept_of_each_row_between_batches_is_the_workers_own() -> None:
    def build() -> None:
        x = v1.placeholder(tf.float32, [5], name="x")
        kept = v1.get_variable("kept", [5], initializer=v1.zeros_initializer(), trainable=False)
        w = v1.get_variable("w", [])
        before = kept.read_value()
        train = v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(tf.square(x * w + before)))
        tf.group(train, v1.assign(kept, before * 0.5 + x))

    assert class_of(analysed(build), "kept") == VariableClass.LOCAL


def test_what_counts_losses_and_nothing_trained_depends_on_is_each_workers_own_although_declared_trainable() -> None:
    def build() -> None:
        _, loss = model()
        v1.train.GradientDescentOptimizer(0.1).minimize(loss)
        v1.get_variable("total", []).assign_add(loss)

    assert class_of(analysed(build), "total") == VariableClass.LOCAL


def test_what_is_trained_by_hand_from_the_batch_is_refused_with_a_remedy_for_what_is_meant_to_count() -> None:
    def build() -> None:
        _, loss = model()
        v1.train.GradientDescentOptimizer(0.1).minimize(loss)
        by_hand = v1.get_variable("by_hand", [])
        by_hand.assign_sub(0.1 * (by_hand - v1.placeholder(tf.float32, [None], name="others")[0]))

    with pytest.raises(GraphError, match="'by_hand' .* computed by hand, say.*trainable=False"):
        analysed(build)
