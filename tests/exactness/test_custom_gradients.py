"""Graphs for a fixed batch whose custom gradients hold tensors and variables of the forward pass in their closures."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.python.framework import function

from ops.exactness.trial import Outcome
from parallax.analysis.graph_to_plan import analyse
from tests.exactness.loss_trials import tried

pytestmark = pytest.mark.rotates(days=3)

v1 = tf.compat.v1
F = tf.float64
FEEDS = {"x": lambda rng, rows: rng.randn(rows, 2), "y": lambda rng, rows: rng.randn(rows, 3)}


def make_square(name: str = "u") -> Any:
    return v1.get_variable(name, [3, 3], F, initializer=v1.random_normal_initializer(seed=3, dtype=F))


def normalise(z: Any) -> Any:
    return (z - tf.reduce_mean(z, 0)) / tf.sqrt(tf.reduce_mean(tf.square(z), 0) + 0.1)


def bounded(z: Any) -> Any:
    """The docs' example: a softplus whose gradient is computed from its input."""

    @tf.custom_gradient
    def softplus(z: Any) -> Any:
        e = tf.exp(z)
        return tf.math.log(1.0 + e), lambda dy: dy * (1.0 - 1.0 / (1.0 + e))

    return softplus(z)


def by_statistics(z: Any) -> Any:
    @tf.custom_gradient
    def scaled(z: Any) -> Any:
        return z * 1.0, lambda dy: dy / (tf.norm(dy) + 0.1) + 0.1 * (z - tf.reduce_mean(z, 0))

    return scaled(z)


def of_globals(z: Any) -> Any:
    script = """
x = graph.get_tensor_by_name("x:0")

@tf.custom_gradient
def masked(z):
    return z * 1.0, lambda dy: dy * tf.cast(x[:, :1] > 0.0, F)
"""
    names: dict[str, Any] = {"tf": tf, "F": F, "graph": z.graph}
    exec(script, names)
    return names["masked"](z)


def with_variables(z: Any) -> Any:
    u = make_square()

    @tf.custom_gradient
    def project(z: Any) -> Any:
        out = tf.tanh(z @ u)

        def grad(dy: Any, variables: Any = None) -> Any:
            change = dy * (1.0 - out * out)
            return change @ tf.transpose(u), [tf.transpose(z) @ change for _ in variables]

        return out, grad

    return project(z)


def recomputed(z: Any) -> Any:
    return tf.recompute_grad(normalise)(z)


def recomputed_twice(z: Any) -> Any:
    u = make_square()
    block = tf.recompute_grad(lambda z: tf.tanh(z @ u) + z)
    return block(block(z))


def recomputed_by_name(z: Any) -> Any:
    @tf.recompute_grad
    def block(z: Any) -> Any:
        with v1.variable_scope("block", reuse=v1.AUTO_REUSE, use_resource=True):
            return tf.nn.relu(z @ make_square()) + normalise(z)

    return block(z)


class Block:
    def __init__(self) -> None:
        self.u = make_square()

    def __call__(self, z: Any) -> Any:
        return tf.tanh(normalise(z) @ self.u)

    def scale(self, factor: float, z: Any) -> Any:
        return factor * self(z)


def recomputed_method(z: Any) -> Any:
    return tf.recompute_grad(partial(Block().scale, 2.0))(z)


class Scale:
    def __init__(self) -> None:
        self.factor = make_square("factor")

    def apply(self, z: Any) -> Any:
        return tf.tanh(normalise(z) @ self.factor)


def recomputed_method_of_no_function(z: Any) -> Any:
    return tf.recompute_grad(Scale().apply)(z)


def recomputed_object(z: Any) -> Any:
    return tf.recompute_grad(Block())(z)


def mixing(z: Any) -> Any:
    return tf.recompute_grad(lambda z: tf.nn.softmax(z @ tf.transpose(z)) @ z)(z)


CASES = [
    *(bounded, by_statistics, of_globals, with_variables, recomputed, recomputed_twice, recomputed_by_name),
    *(recomputed_method, recomputed_method_of_no_function, recomputed_object, mixing),
]


def try_fixed(transform: Any) -> Outcome:
    """The outcome of a graph for a fixed batch whose activations are transformed."""

    def build(rows: int | None) -> Any:
        v1.get_variable_scope().set_use_resource(True)
        x, y = v1.placeholder(F, [rows, 2], name="x"), v1.placeholder(F, [rows, 3], name="y")
        w = v1.get_variable("w", [2, 3], F, initializer=v1.random_normal_initializer(seed=1, dtype=F))
        loss = tf.reduce_mean(tf.square(transform(x @ w) - y))
        return v1.train.GradientDescentOptimizer(0.1).minimize(loss)

    return tried(build, FEEDS, is_open=False, dtype="float64", rows=6)


@pytest.mark.parametrize("transform", CASES)
def test_custom_gradients_of_a_fixed_batch_are_those_of_the_global_batch(transform: Any) -> None:
    outcome = try_fixed(transform)
    assert (outcome.kind, outcome.notes) == ("equal", ()), outcome
    assert bool(outcome.gathers) == (transform is mixing)


def test_reads_of_variables_take_no_names_of_the_script() -> None:
    """The graph in which gradients are derived again lacks the update, and reads the table for the custom gradient."""

    def build(rows: int | None) -> Any:
        v1.get_variable_scope().set_use_resource(True)
        x = v1.placeholder(F, [rows, 2], name="x")
        table, total = v1.get_variable("table", [5, 3], F), v1.get_variable("total", [5, 1], F, trainable=False)
        rows_read = tf.gather(table, tf.cast(x[:, 0] > 0.0, tf.int32))
        gradient = tf.gradients(tf.reduce_mean(tf.recompute_grad(lambda z: tf.tanh(z * z))(rows_read)), table)[0]
        with tf.control_dependencies([v1.scatter_add(total, gradient.indices, gradient.values[:, :1])]):
            rates = tf.gather(total.read_value(), gradient.indices)
        return v1.scatter_sub(table, gradient.indices, rates * gradient.values)

    outcome = tried(build, {"x": FEEDS["x"]}, is_open=False, dtype="float64", rows=6)
    assert (outcome.kind, outcome.notes) == ("equal", ()), outcome


def test_a_gradient_that_needs_a_fixed_length_leaves_the_batch_fixed() -> None:
    @tf.custom_gradient
    def scaled(z: Any) -> Any:
        def grad(dy: Any) -> Any:
            if dy.shape[0] is None:
                raise RuntimeError("a length is needed")
            return dy * tf.cast(z > 0.0, F)

        return z * 1.0, grad

    outcome = try_fixed(scaled)
    assert outcome.kind == "equal" and any("a length is needed" in note for note in outcome.notes), outcome


def test_the_script_s_graph_is_left_as_it_is() -> None:
    """Also where a gradient computes something of a variable that no loss needs."""
    graph = tf.Graph()
    with graph.as_default():
        v1.get_variable_scope().set_use_resource(True)
        x, y = v1.placeholder(F, [6, 2], name="x"), v1.placeholder(F, [6, 3], name="y")
        w, other = v1.get_variable("w", [2, 3], F), v1.get_variable("other", [], F)
        z = tf.recompute_grad(normalise)(x @ w)

        @tf.custom_gradient
        def scaled(z: Any) -> Any:
            return z * 1.0, lambda dy: dy * (other + 1.0)

        v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(tf.square(scaled(z) - y)), var_list=[w])
        v1.assign_add(v1.get_variable("seen", [], F, trainable=False), 1.0)
    before = [op.name for op in graph.get_operations()]
    analyse(graph)
    assert [op.name for op in graph.get_operations()] == before and not graph.finalized


def test_a_gradient_that_makes_variables_leaves_the_batch_fixed() -> None:
    """Its variable would be another one than the script's."""

    @tf.custom_gradient
    def scaled(z: Any) -> Any:
        return z * 1.0, lambda dy: dy * v1.Variable(2.0, dtype=F, trainable=False) * tf.cast(z > 0.0, F)

    outcome = try_fixed(scaled)
    assert outcome.kind == "equal", outcome
    assert any("a custom gradient makes the variable" in note for note in outcome.notes)


def test_a_function_that_defines_its_own_gradient_leaves_the_batch_fixed() -> None:
    """The inlined function of a Defun would be differentiated without that gradient."""

    @function.Defun(F, python_grad_func=lambda op, dy: -3.0 * dy, shape_func=lambda op: [op.inputs[0].shape])
    def reverse(z: Any) -> Any:
        return z * 1.0

    outcome = try_fixed(reverse)
    assert outcome.kind == "equal" and any("defines its own gradient" in note for note in outcome.notes), outcome
