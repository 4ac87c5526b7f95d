"""What `parallax.function` reads of a step, makes of its results, and refuses; no job."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import parallax
from parallax.analysis.graph_to_plan import analyse, plan_for, rewrites_of
from parallax.base.errors import ConfigError, GraphError
from parallax.functions.function import DistributedStep
from parallax.functions.tracing.arguments import are_alike, arguments_of, without_values
from parallax.functions.tracing.results import rules_of
from parallax.functions.tracing.trace_step import trace_step
from parallax.keras.model_steps import step_graph, trace_training
from parallax.plans.plan import one_host

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
    return step_graph(model, {"train": trace_training(model, spec)})[0].graph


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


@pytest.mark.parametrize("by_tape", [True, False])
def test_a_loss_with_an_entry_for_each_example_counts_as_the_sum_that_autodiff_takes(by_tape):
    kernel, optimizer = tf.Variable(tf.ones([3, 1])), keras.optimizers.SGD(0.1)

    def step(ids, targets):
        with tf.GradientTape() as tape:
            loss = tf.square(tf.cast(ids, tf.float32) @ kernel - targets)[:, 0]
        given = tape.gradient(loss, [kernel]) if by_tape else tf.gradients(loss, [kernel])
        optimizer.apply(given, [kernel])

    analysed = analyse(DistributedStep(step, None, parallax.Config(), None, True).graph_of(IDS, TARGETS))
    (reduced,) = rewrites_of(analysed, plan_for(analysed, one_host(2), parallax.Config())).all_reduces
    assert reduced.kind == "gradient"  # a sum over the workers, and not their mean


@pytest.mark.parametrize(("workers", "touched"), [(2, 12), (3, 9)])
def test_a_plan_counts_the_rows_that_the_first_batch_touches(workers, touched):
    emb = tf.Variable(tf.zeros([5000, 4]), name="emb")
    config, optimizer = parallax.Config(workers=workers), v1.train.GradientDescentOptimizer(0.1)

    @parallax.function(parallax_config=config)
    def step(ids, scale):
        with tf.GradientTape() as tape:
            loss = scale * tf.reduce_mean(tf.square(tf.gather(emb, ids.flat_values if ragged else ids) - 1.0))
        optimizer.apply_gradients([(tape.gradient(loss, emb), emb)])
        return loss

    for ragged, ids in ((False, IDS), (True, tf.RaggedTensor.from_row_lengths(np.zeros(24, np.int64), [20, 0, 3, 1]))):
        plan = parallax.plan(step.graph_of(ids, np.float32(1.0)), parallax_config=config)
        (found,) = [d for d in plan.variables if d.name == "emb"]
        expected = touched if not ragged else 24 // workers
        assert (found.touched_rows, found.cost.sent_bytes > 0) == (expected, True)


def test_a_step_without_a_batch_is_computed_by_every_worker_and_adds_nothing_up():
    kernel, table = tf.Variable(tf.ones([3, 2])), tf.Variable(tf.ones([50, 4]))

    @parallax.function
    def step(rate):
        noise = tf.nn.dropout(tf.random.normal([16, 3]), 0.5)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(noise @ kernel)) + tf.reduce_sum(tf.gather(table, [1, 2, 2]) ** 2)
        gradient, rows = tape.gradient(loss, [kernel, table])
        kernel.assign_sub(rate * gradient)
        table.scatter_sub(rows)

    analysed = analyse(step.graph_of(np.float32(0.1)))
    plan = plan_for(analysed, one_host(2), parallax.Config())
    rewrites = rewrites_of(analysed, plan)
    assert (plan.notes, rewrites.all_reduces) == ((), ()) and len(rewrites.equal_random_ops) == 2
    assert [(change.after.kind, len(change.edges)) for change in rewrites.layouts[0].changes] == [("sum", 1)]


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
        one.name: one.trainable for one in trace_step(step, arguments_of([np.ones([2, 12], np.float32)], {})).variables
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

    trace = trace_step(step, arguments_of([np.array([3, 3, 1])], {}), merges_rows=True)
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
    trace_step(step, given)
    assert seen[0] == ([None, 3], [], True)
    known = without_values(given)
    assert are_alike(known, arguments_of([IDS[:5], tf.constant(2.0)], {"twice": True}))
    for other in (
        ([IDS, np.float32(1)], {"twice": False}),
        ([IDS[:, :2], np.float32(1)], {"twice": True}),
        ([{"ids": IDS}, np.float32(1)], {"twice": True}),
    ):
        assert not are_alike(known, arguments_of(*other))


@pytest.mark.parametrize("keeps", [True, False])
def test_a_layer_that_a_step_makes_anew_is_refused_and_one_that_it_keeps_is_not(keeps):
    kept = []

    def step(x):
        made = kept[0] if keeps and kept else keras.layers.Dense(1, name="made")
        kept[:] = [made]
        return tf.reduce_mean(made(x))

    given = arguments_of([np.ones([2, 3], np.float32)], {})
    if keeps:
        assert [one.name for one in trace_step(step, given).variables] == ["made/kernel", "made/bias"]
    else:
        with pytest.raises(GraphError, match="creates .*kernel.*bias each time"):
            trace_step(step, given)


def test_a_signature_leaves_lengths_open():
    signature = [tf.TensorSpec([None, None], tf.int64)]
    given = arguments_of([IDS], {}, signature)
    assert are_alike(without_values(given), arguments_of([IDS[:, :2]], {}))


def test_a_step_that_needs_the_length_of_ragged_rows_is_told_where_it_is():
    step = parallax.function(lambda x: tf.reduce_sum(x.values) / x.shape[0])
    with pytest.raises(ValueError, match=r"None values not supported(.|\n)*use tf.shape\(x\)\[0\]"):
        step.graph_of(tf.ragged.constant([[1.0], [2.0, 3.0]]))


def test_what_a_step_returns_is_known_of_itself_or_said():
    with tf.Graph().as_default():
        loss, rows = v1.placeholder(tf.float32, []), v1.placeholder(tf.int64, [None, 2])
        right, classes = v1.placeholder(tf.int64, []), v1.placeholder(tf.float32, [10])
    assert rules_of({"loss": loss, "none": None, "rows": rows}, None) == ("mean", "rows")
    assert rules_of([right, classes], None) == ("whole", "whole")
    assert rules_of([loss, right], ["mean", "sum"]) == ("mean", "sum")
    with pytest.raises(ConfigError, match="one word for each of the 2 tensors"):
        rules_of([loss, right], ["mean"])
    with pytest.raises(GraphError, match="A mean over the batch must have a floating-point type"):
        rules_of([right], "mean")


class Trainer:
    """An object with a step."""

    def __init__(self, width=1):
        self.kernel = tf.Variable(tf.ones([3, width]), name="kernel")

    def train(self, x, y, rate=0.1, *, twice=False):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(x @ self.kernel - y))
        self.kernel.assign_sub(rate * tape.gradient(loss, self.kernel))
        return tf.cond(loss > 1, lambda: loss, lambda: 2 * loss) if twice else loss

    step = parallax.function(train)
    signed = parallax.function(
        train, input_signature=[tf.TensorSpec([None, 3]), tf.TensorSpec([None, 1]), tf.TensorSpec([])]
    )


X, Y = np.zeros([8, 3], np.float32), np.zeros([8, 1], np.float32)


def feeds_of(graph):
    return [
        (op.outputs[0].shape.as_list(), op.outputs[0].dtype)
        for op in graph.get_operations()
        if op.type == "Placeholder"
    ]


def test_a_method_is_a_step_of_its_object_and_of_its_class():
    trainer = Trainer()
    expected = [([None, 3], tf.float32), ([None, 1], tf.float32)]
    for graph in (trainer.step.graph_of(X, Y), Trainer.step.graph_of(trainer, X, Y), trainer.step.graph_of(x=X, y=Y)):
        assert feeds_of(graph) == expected
        assert [v.name for v in graph.get_collection("variables")] == ["kernel:0"]
    assert trainer.step.worker_id == 0 and trainer.step._variants is Trainer.step._variants
    assert Trainer.step.__name__ == "train" and trainer.step.python_function(X, Y).shape == []


def test_an_input_signature_makes_tensors_of_what_it_names():
    graph = Trainer().signed.graph_of(X.astype(np.float64), Y.tolist(), 0.5)
    assert feeds_of(graph) == [([None, 3], tf.float32), ([None, 1], tf.float32), ([], tf.float32)]
    assert feeds_of(Trainer().signed.graph_of(X, rate=0.5, y=Y)) == feeds_of(graph)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((X, [Y, Y, Y], 0.1), "input_signature of the step requires .*this call has"),
        ((X, Y, 0.1, True), "takes 4 positional arguments|too many positional"),
        ((X, Y[:, 0], 0.1), "input_signature of the step requires TensorSpec.shape=.None, 1.*this call has"),
        ((X, Y, "fast"), "input_signature of the step requires TensorSpec.shape=..,.*this call has 'fast'"),
    ],
)
def test_what_an_input_signature_does_not_allow_is_planned(args, message):
    with pytest.raises((GraphError, TypeError), match=message):
        parallax.function(Trainer.signed.python_function, input_signature=Trainer.signed.input_signature).__get__(
            Trainer()
        ).graph_of(*args)


def test_a_tensor_that_an_input_signature_does_not_name_is_planned():
    step = parallax.function(Trainer.step.python_function, input_signature=Trainer.signed.input_signature[:2])
    assert step.__get__(Trainer()).graph_of(X, Y)
    with pytest.raises(GraphError, match=r"input_signature of the step is float32.None, 3., float32.None, 1.,"):
        step.__get__(Trainer()).graph_of(X, Y, tf.constant(0.1))


def test_a_step_may_be_called_by_names_or_by_positions():
    step = Trainer().step

    def read(*args, **kwargs):
        return step._arguments(args, kwargs)

    assert are_alike(without_values(read(X, Y)), read(X, Y, 0.1))
    assert are_alike(without_values(read(y=Y, x=X)), read(X, Y, twice=False))
    assert not are_alike(without_values(read(X, Y)), read(X, Y, twice=True))


def test_autograph_is_as_the_step_says():
    def step(x):
        if tf.reduce_sum(x) > 0:
            x = x + 1.0
        return x

    x = np.ones([4, 2], np.float32)
    assert parallax.function(step).graph_of(x)
    for plain in (parallax.function(step, autograph=False), parallax.function(tf.function(step, autograph=False))):
        with pytest.raises(TypeError, match="symbolic.*AutoGraph|AutoGraph"):
            plain.graph_of(x)


def test_settings_of_a_tf_function_are_those_of_the_step(caplog):
    signature = [tf.TensorSpec([None, None], tf.int64)]
    step = parallax.function(tf.function(lambda ids: tf.reduce_sum(ids), input_signature=signature), returns="sum")
    assert list(step.input_signature) == signature
    assert feeds_of(step.graph_of(IDS)) == [([None, None], tf.int64)]
    assert parallax.function(name="mine", reduce_retracing=True, jit_compile=False)(print)._name == "mine"
    assert "jit_compile" not in caplog.text
    parallax.function(tf.function(print, jit_compile=True))
    assert "jit_compile=True is ignored" in caplog.text


def test_what_a_step_has_not_of_a_tf_function_is_refused_by_name():
    with pytest.raises(ConfigError, match="got experimental_implements='x'. Remove it"):
        parallax.function(print, experimental_implements="x")
    with pytest.raises(ConfigError, match="must be a list or tuple of tf.TensorSpec"):
        parallax.function(print, input_signature=[tf.float32])
    with pytest.raises(GraphError, match=r"no ConcreteFunction.*print\.graph_of"):
        parallax.function(print).get_concrete_function()
    with pytest.raises(GraphError, match="called within another function that TensorFlow traces"):
        tf.function(parallax.function(lambda x: x))(tf.constant(1.0))


def test_what_is_no_step_or_no_config_is_planned():
    with pytest.raises(ConfigError, match="needs a function"):
        parallax.function(3)
    with pytest.raises(ConfigError, match=r"parallax\.Config"):
        parallax.function(print, parallax_config={})
    assert isinstance(parallax.function(returns="sum")(print), DistributedStep)


def planned(train):
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


def test_steps_of_a_loop_reduce_their_gradients():
    plan = planned(in_a_loop)
    assert [one.route for one in plan.variables if one.name.startswith("dense")] == ["allreduce", "allreduce"]
    (note,) = plan.notes
    assert note.endswith("in each iteration: bytes are those of one iteration")


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


def test_a_returned_metric_is_refused():
    with pytest.raises(GraphError, match=r"returns a value computed from .*result\(\) of the script covers all"):
        planned(with_a_metric(keras.metrics.Mean, returned))


def test_a_metric_that_is_overwritten_may_be_returned():
    def write(metric, loss):
        metric.total.assign(loss)
        return metric.total + 1.0

    assert planned(with_a_metric(keras.metrics.Mean, write)).notes == ()


def test_what_a_helper_gives_of_a_metric_is_of_the_global_batch():
    metric = keras.metrics.Mean()

    @tf.function
    def updated(loss):
        metric.update_state(loss)
        return metric.result()

    assert planned(with_a_metric(lambda: None, lambda _, loss: updated(loss))).notes == ()


def test_steps_that_only_evaluate_are_planned():
    plan = planned(lambda dense, x, y, update: tf.reduce_mean(tf.square(dense(x) - y)))
    assert {one.route for one in plan.variables} == {"none"} and plan.notes == ()


def test_a_step_that_asks_what_is_built_is_that_of_later_calls():
    kernel, optimizer = tf.Variable(tf.ones([3, 1])), keras.optimizers.Adam(0.1)
    asked = []

    def step(x):
        asked.append(optimizer.built)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(x @ kernel) * (2.0 if optimizer.built else 1.0)
        optimizer.apply([tape.gradient(loss, kernel)], [kernel])
        return loss

    trace_step(step, arguments_of([np.ones([2, 3], np.float32)], {}))
    assert asked == [False, True]
