"""What `parallax.function` reads of a step, makes of its results, and refuses; no job."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import parallax
from parallax.errors import ConfigError, GraphError
from parallax.functions.called_functions import watch_calls
from parallax.functions.function import DistributedStep
from parallax.functions.mirrors import Mirrors
from parallax.functions.results import rules_of
from parallax.functions.tracing import arguments_of, check_same, traced_step
from parallax.keras.steps import step_graph, traced_training

v1 = tf.compat.v1
IDS, TARGETS = np.zeros([8, 3], np.int64), np.zeros([8, 1], np.float32)


def plan_without_names(graph):
    """What is decided about each variable that is trained."""
    plan = parallax.plan(graph, "localhost", parallax_config=parallax.Config(workers=2))
    return sorted((d.shape, d.cls.value, d.route) for d in plan.variables if d.route != "none")


def as_tf1_graph(optimizer):
    graph = tf.Graph()
    with graph.as_default():
        ids, targets = v1.placeholder(tf.int64, [None, 3]), v1.placeholder(tf.float32, [None, 1])
        emb, kernel, bias = (v1.get_variable(n, s) for n, s in (("emb", [50, 4]), ("kernel", [12, 1]), ("bias", [1])))
        rows = tf.reshape(tf.nn.embedding_lookup(emb, ids), [-1, 12])
        optimizer.minimize(tf.reduce_mean(tf.square(rows @ kernel + bias - targets)))
    return graph


def as_function(optimizer):
    emb, dense = keras.layers.Embedding(50, 4), keras.layers.Dense(1)
    emb.build()
    dense.build([None, 12])

    @parallax.function
    def step(ids, targets):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(dense(tf.reshape(emb(ids), [-1, 12])) - targets))
        variables = emb.trainable_variables + dense.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    return step.graph_of(IDS, TARGETS)


def as_keras(optimizer):
    ids = keras.Input([3], dtype="int64")
    rows = keras.layers.Reshape([12])(keras.layers.Embedding(50, 4)(ids))
    model = keras.Model(ids, keras.layers.Dense(1)(rows))
    model.compile(optimizer, "mse")
    spec = (tf.TensorSpec([None, 3], tf.int64), tf.TensorSpec([None, 1], tf.float32))
    return step_graph(model, {"train": traced_training(model, spec)})[0].graph


@pytest.mark.parametrize(
    ("of_tf1", "of_keras"),
    [
        (v1.train.GradientDescentOptimizer, keras.optimizers.SGD),
        (v1.train.AdagradOptimizer, keras.optimizers.Adagrad),
        (v1.train.AdamOptimizer, keras.optimizers.Adam),
    ],
)
def test_a_model_has_one_plan_as_tf1_graph_function_and_keras(of_tf1, of_keras):
    expected = plan_without_names(as_tf1_graph(of_tf1(0.1)))
    assert expected[-1][1:] == ("sparse", "alltoall")
    assert plan_without_names(as_function(of_keras(0.1))) == expected
    assert plan_without_names(as_keras(of_keras(0.1))) == expected


def test_a_slot_is_named_below_its_variable_and_variables_by_their_paths():
    dense = keras.layers.Dense(1, name="last")
    dense.build([None, 12])
    rule = keras.optimizers.Adam(0.1, name="adam")

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(dense(x))
        rule.apply_gradients(
            zip(tape.gradient(loss, dense.trainable_variables), dense.trainable_variables, strict=True)
        )

    found = {
        one.name: one.trainable for one in traced_step(step, arguments_of([np.ones([2, 12], np.float32)], {})).variables
    }
    assert found["last/kernel"] and not found["last/kernel/adam/momentum"]
    assert rule.apply.__func__ is keras.optimizers.Optimizer.apply


@pytest.mark.parametrize("make", [keras.optimizers.SGD, keras.optimizers.Adagrad, keras.optimizers.Adam])
def test_an_optimizer_of_keras_updates_plain_variables_with_merged_rows(make):
    table, kernel = tf.Variable(tf.ones([5, 2]), name="deep/table"), tf.Variable(tf.ones([2, 1]), name="kernel")
    rule = make(0.1, name="rule")

    def step(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(tf.gather(table, ids) @ kernel))
        rule.apply_gradients(zip(tape.gradient(loss, [table, kernel]), [table, kernel], strict=True))

    trace = traced_step(step, arguments_of([np.array([3, 3, 1])], {}))
    names = {one.name: one.trainable for one in trace.variables}
    assert names["deep/table"] and names["kernel"]
    assert all(name.startswith(("deep/table", "kernel", "rule/iter", "rule/learn", "iter", "learn")) for name in names)
    trace.concrete(tf.constant([3, 3, 1], tf.int64))

    dense, weights = tf.Variable(tf.ones([5, 2])), tf.Variable(tf.ones([2, 1]))
    plain = make(0.1)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.square(tf.one_hot([3, 3, 1], 5) @ dense @ weights))
    plain.apply_gradients(zip(tape.gradient(loss, [dense, weights]), [dense, weights], strict=True))
    np.testing.assert_allclose(table.numpy(), dense.numpy(), rtol=1e-6)
    np.testing.assert_allclose(kernel.numpy(), weights.numpy(), rtol=1e-6)


def test_the_batch_is_open_scalars_are_not_and_python_values_are_constants():
    seen = []

    def step(ids, rate, *, twice):
        seen.append((ids.shape.as_list(), rate.shape.as_list(), twice))

    given = arguments_of([IDS, np.float32(1)], {"twice": True})
    traced_step(step, given)
    assert seen[0] == ([None, 3], [], True)
    check_same(given, arguments_of([IDS[:5], tf.constant(2.0)], {"twice": True}))
    for other in ([IDS, np.float32(1)], {"twice": False}), ([IDS[:, :2], np.float32(1)], {"twice": True}):
        with pytest.raises(GraphError, match="made at its first call, for int64.None, 3., float32"):
            check_same(given, arguments_of(*other))


def test_a_signature_leaves_lengths_open():
    signature = [tf.TensorSpec([None, None], tf.int64)]
    given = arguments_of([IDS], {}, signature)
    check_same(given, arguments_of([IDS[:, :2]], {}))


def test_what_a_step_returns_is_known_or_must_be_said():
    with tf.Graph().as_default():
        loss, rows = v1.placeholder(tf.float32, []), v1.placeholder(tf.int64, [None, 2])
        right, classes = v1.placeholder(tf.int64, []), v1.placeholder(tf.float32, [10])
    assert rules_of({"loss": loss, "none": None, "rows": rows}, None) == ("mean", "rows")
    for ambiguous in right, classes:
        with pytest.raises(GraphError, match="Say what it is: 'mean'"):
            rules_of([loss, ambiguous], None)
    assert rules_of([loss, right], ["mean", "sum"]) == ("mean", "sum")
    with pytest.raises(ConfigError, match="one word for each tensor"):
        rules_of([loss, right], ["mean"])


def test_functions_called_between_steps_find_trained_values_and_leave_theirs(monkeypatch):
    from tensorflow.python.eager.polymorphic_function.concrete_function import ConcreteFunction

    monkeypatch.setattr(ConcreteFunction, "_call_flat", ConcreteFunction._call_flat)  # put back at the end
    read, written = tf.Variable(1.0), tf.Variable(0.0)
    mirrors = Mirrors([("read", read), ("written", written)], {"read": 5.0, "written": 7.0}.get)
    watch_calls(mirrors)
    mirrors.outdate(["read", "written"])

    @tf.function
    def add():
        written.assign_add(read)
        return read + 1.0

    assert float(add()) == 6.0 and float(written) == 12.0
    assert mirrors.written == {"written"} and mirrors.stale == set()
    mirrors.release()


def test_what_is_no_step_or_no_config_is_refused():
    with pytest.raises(ConfigError, match="takes a function"):
        parallax.function(3)
    with pytest.raises(ConfigError, match=r"parallax\.Config"):
        parallax.function(print, parallax_config={})
    assert isinstance(parallax.function(returns="sum")(print), DistributedStep)


def refused(train):
    """The plan of a step with a dense layer; `train` takes the layer, the batch, and what updates by gradients."""
    dense, rule = keras.layers.Dense(1), keras.optimizers.SGD(0.1)
    dense.build([None, 12])

    def update(gradients):
        rule.apply_gradients(zip(gradients, dense.trainable_variables, strict=True))

    @parallax.function
    def step(x, y):
        return train(dense, x, y, update)

    return parallax.plan(step.graph_of(np.ones([8, 12], np.float32), TARGETS), "localhost")


def in_a_loop(dense, x, y, update):
    for _ in tf.range(3):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(dense(x) - y))
        update(tape.gradient(loss, dense.trainable_variables))


def by_a_jacobian(dense, x, y, update):
    with tf.GradientTape() as tape:
        each = tf.reduce_mean(tf.square(dense(x) - y), 1)
    update([tf.reduce_mean(one, 0) for one in tape.jacobian(each, dense.trainable_variables)])


def with_a_metric(made, write):
    metric = made()

    def train(dense, x, y, update):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(dense(x) - y))
        update(tape.gradient(loss, dense.trainable_variables))
        return write(metric, loss)

    return train


def returned(metric, loss):
    metric.update_state(loss)
    return metric.result()


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (in_a_loop, "must not be taken within a loop.*unroll"),
        (by_a_jacobian, "a tape's jacobian"),
        (with_a_metric(keras.metrics.Mean, returned), r"returns what it computes of .*result\(\) is of all"),
        (with_a_metric(keras.metrics.Mean, lambda metric, loss: metric.total.assign(loss)), "not by adding to it"),
        (with_a_metric(keras.metrics.Mean, lambda metric, loss: tf.cast(loss, tf.int32)), "Say what it is"),
    ],
)
def test_what_workers_cannot_put_together_is_refused(train, message):
    with pytest.raises(GraphError, match=message):
        refused(train)


def test_the_plan_says_where_a_helper_gives_what_a_metric_holds():
    metric = keras.metrics.Mean()

    @tf.function
    def updated(loss):
        metric.update_state(loss)
        return metric.result()

    plan = refused(with_a_metric(lambda: None, lambda _, loss: updated(loss)))
    assert any("of which each worker has a part: one process would take all of it" in note for note in plan.notes)
