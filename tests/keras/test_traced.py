"""Large variables of Keras models: owners make the rows that plain Keras would have made, and nobody makes more."""

import gc

import keras
import numpy as np
import pytest
import tensorflow as tf

import parallax.keras  # noqa: F401  # has variables traced
from parallax.analysis.graph_to_plan import analyse, make_feasible_plan, rewrites_of
from parallax.base.errors import CheckpointError, ConfigError, SessionError
from parallax.functions.tracing import traced_values as traced_variables
from parallax.functions.tracing.step_graph import StepGraph, StepVariable
from parallax.functions.tracing.traced_values import TracedVariable, initial_of, source_of
from parallax.keras import checkpoints, intercept_fit
from parallax.plans.plan import PlanConstraints, one_host
from parallax.settings.config import Config
from parallax.settings.parts import TableConfig
from parallax.transform.building.editor import Worker
from parallax.transform.pipeline import transform
from tests.keras.here import difference, fit_here, fit_plainly, outcome

v1, initializers, layers = tf.compat.v1, keras.initializers, keras.layers
ROWS, WIDTH, WORKERS = 101, 8, 3  # no other dimension is as long as ROWS
BY_ROW = {
    "uniform": lambda: initializers.RandomUniform(-0.3, 0.7, seed=5),
    "embedding": lambda: "uniform",
    "normal": lambda: initializers.RandomNormal(0.5, 2.0),
    "truncated_normal": lambda: initializers.TruncatedNormal(0.5, 2.0, seed=7),
    "glorot_uniform": lambda: "glorot_uniform",
    "he_normal": lambda: "he_normal",
    "variance_scaling": lambda: initializers.VarianceScaling(0.1, "fan_in", "untruncated_normal"),
    "zeros": lambda: "zeros",
    "ones": lambda: "ones",
    "constant": lambda: initializers.Constant(0.25),
}
WHOLE = {
    "orthogonal": lambda: initializers.Orthogonal(seed=3),
    "tanh": lambda: lambda shape, dtype: keras.ops.tanh(keras.random.normal(shape, dtype=dtype, seed=1)),
}


@pytest.fixture
def tracing(monkeypatch):
    """Variables of so many bytes and more are traced; nothing has been made whole before."""
    monkeypatch.setattr(traced_variables, "_materialized", traced_variables._MaterializedBytes())
    traced_variables.limit_materialized(intercept_fit._whole_bytes)

    def begin(**tables):
        monkeypatch.setattr(intercept_fit._use, "config", Config(tables=TableConfig(**tables)))

    return begin


def tables_of(kinds, dtype):
    """A layer for each kind of initial value."""
    keras.utils.set_random_seed(3)
    made = {name: layers.Embedding(ROWS, WIDTH, kind(), name=name, dtype=dtype) for name, kind in kinds.items()}
    for one in made.values():
        one.build()
    return {name: one.embeddings.value for name, one in made.items()}


@pytest.mark.rotates
@pytest.mark.parametrize(("dtype", "whole"), [("float32", WHOLE), ("float16", {})])
def test_owners_make_the_rows_that_keras_would_have_made(tracing, dtype, whole):
    kinds = BY_ROW | whole
    plain = {name: variable.numpy() for name, variable in tables_of(kinds, dtype).items()}
    tracing(traced_bytes=1)
    traced = tables_of(kinds, dtype)
    graph = StepGraph([StepVariable(variable, name, True) for name, variable in traced.items()])

    @tf.function(autograph=False)
    def step(ids):
        for variable in traced.values():
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.cast(tf.gather(variable, ids), tf.float32) ** 2)
            gradient = tape.gradient(loss, variable)
            variable.scatter_sub(tf.IndexedSlices(tf.cast(gradient.values, variable.dtype), gradient.indices))

    graph.add("train", step.get_concrete_function(tf.TensorSpec([6], tf.int32)))
    assert all(source_of(variable) is not None for variable in traced.values())
    analysed = analyse(graph.graph)
    constraints = PlanConstraints(routes=dict.fromkeys(traced, "alltoall"))
    rewrites = rewrites_of(analysed, make_feasible_plan(analysed, one_host(WORKERS), constraints))
    for rank in range(WORKERS):
        made = transform(analysed.captured.view, rewrites, Worker(rank, WORKERS, 7))
        assert {cut.variable for cut in made.sliced_values} == set(whole)
        with tf.Graph().as_default() as worker, v1.Session() as session:
            tf.graph_util.import_graph_def(made.graph_def, name="")
            for name in traced:
                session.run(worker.get_operation_by_name(f"{name}/Assign"))
                found = session.run(worker.get_operation_by_name(f"{name}/Read/ReadVariableOp").outputs[0])
                np.testing.assert_array_equal(found, plain[name][rank::WORKERS], err_msg=name)
    for name, variable in traced.items():
        np.testing.assert_array_equal(parallax.keras.rows(variable, 40, 7), plain[name][40:47], err_msg=name)
        assert (source_of(variable) is None) == (name in whole)
        np.testing.assert_array_equal(variable.numpy(), plain[name], err_msg=name)


X = np.random.default_rng(1).integers(0, ROWS, [24, 3]).astype(np.int32)
Y = np.random.default_rng(2).random([24, 1]).astype(np.float32)


def compiled(optimizer="adagrad"):
    """An embedding of which every row is drawn, and a dense layer."""
    table = layers.Embedding(ROWS, WIDTH, name="table")
    model = keras.Sequential([keras.Input((3,), dtype="int32"), table, layers.Flatten()], name="model")
    model.add(layers.Dense(1, name="out"))
    kinds = {"adagrad": keras.optimizers.Adagrad, "adam": keras.optimizers.Adam}
    model.compile(kinds[optimizer](0.01, name="optimizer"), "mse", metrics=["mae"])
    return model


def trained(train, optimizer="adagrad"):
    """Two calls of fit, with something read before, between and after them."""
    model = compiled(optimizer)
    seen = [model.evaluate(X, Y, verbose=0), model.layers[0].get_weights()]
    for _ in range(2):
        history = train(model, X, Y, batch_size=8, epochs=2, verbose=0, validation_split=0.25)
        seen += [history.history, model.predict(X, verbose=0), model.get_weights()]
    return model, seen


@pytest.mark.rotates
@pytest.mark.parametrize("optimizer", ["adagrad", "adam"])
def test_a_traced_model_is_trained_as_any_other(tracing, optimizer):
    plain = outcome(fit_plainly, lambda train: trained(train, optimizer))
    tracing(traced_bytes=1000)
    here = outcome(fit_here, lambda train: trained(train, optimizer))
    assert max(difference(here[name], plain[name]) for name in plain) <= 1e-6


def test_what_cannot_be_traced_is_made_as_keras_makes_it(tracing):
    def made(initializer):
        keras.utils.set_random_seed(3)
        np.random.seed(3)
        found = layers.Embedding(ROWS, WIDTH, initializer)
        found.build()
        return found.embeddings.value, np.random.rand()

    of_python = {
        "array": lambda shape, dtype: np.random.rand(*shape).astype(dtype),
        "stateful": lambda shape, dtype: tf.random.normal(shape, dtype=dtype),
        "state of Keras": initializers.RandomNormal(seed=keras.random.SeedGenerator(3)),
        "eager alone": lambda shape, dtype: tf.random.stateless_normal(shape, [1, 2]).numpy(),
    }
    for name, initializer in of_python.items():
        tracing()
        plain, drawn = made(initializer)
        tracing(traced_bytes=1)
        if name == "state of Keras":
            initializer = initializers.RandomNormal(seed=keras.random.SeedGenerator(3))
        found, after = made(initializer)
        if name != "array":
            assert not isinstance(found, TracedVariable), name
        np.testing.assert_array_equal(found.numpy(), plain.numpy(), err_msg=name)
        assert after == drawn, name


def test_a_traced_variable_is_written_without_being_made(tracing):
    tracing(traced_bytes=1)
    table = tables_of({"table": BY_ROW["normal"]}, "float32")["table"]
    with pytest.raises(ValueError):
        table.assign(np.zeros([2, 2]))
    assert source_of(table) is initial_of(table) is not None
    table.assign(np.ones([ROWS, WIDTH]))
    assert source_of(table) is None and table.numpy().sum() == ROWS * WIDTH


def test_more_than_is_allowed_is_not_made_whole(tracing, monkeypatch):
    monkeypatch.setattr(intercept_fit._use, "is_wanted", True)
    tracing(traced_bytes=1000, whole_bytes=ROWS * WIDTH * 4)
    model = compiled()
    model.evaluate(X, Y, verbose=0)
    second = compiled()
    message = r"at most 3.23 kB of large variables whole .* has 3.23 kB, .* 6.46 kB. It has its initial value"
    for read in (second.get_weights, lambda: second.evaluate(X, Y, verbose=0), lambda: second(X)):
        with pytest.raises(SessionError, match=message):
            read()
    assert second.count_params() == model.count_params()
    del model
    gc.collect()
    assert len(second.get_weights()) == 3


def test_tables_too_large_to_be_sent_back_need_a_folder(tracing, monkeypatch):
    monkeypatch.setattr(intercept_fit._use, "is_wanted", True)
    tracing(traced_bytes=1000, whole_bytes=1000)
    with pytest.raises(ConfigError, match="this one has 6.46 kB in 2 variables. Name a folder: parallax run"):
        compiled().fit(X, Y, verbose=0)


@pytest.mark.parametrize("chunk_bytes", [700, 1 << 20])
def test_a_checkpoint_is_written_and_read_by_rows(tracing, monkeypatch, tmp_path, chunk_bytes):
    monkeypatch.setattr(checkpoints, "CHUNK_BYTES", chunk_bytes)
    keras.utils.set_random_seed(3)
    plain = compiled()
    plain.optimizer.build(plain.trainable_variables)
    keras.utils.set_random_seed(3)
    monkeypatch.setattr(intercept_fit._use, "is_wanted", True)
    tracing(traced_bytes=1000, whole_bytes=1000)
    model = compiled()
    model.optimizer.build(model.trainable_variables)
    prefix = parallax.keras.save_checkpoint(model, tmp_path / "first", 4)
    assert prefix == f"{tmp_path}/first/model.ckpt-4"
    other = compiled()
    other.optimizer.build(other.trainable_variables)
    for one in (*other.layers[-1].weights, other.optimizer.learning_rate):
        one.assign(one * 2 + 1)
    parallax.keras.load_checkpoint(other, prefix)
    again = parallax.keras.save_checkpoint(other, tmp_path / "second", 1)
    for one in (prefix, again):
        reader = tf.train.load_checkpoint(one)
        stored = [reader.get_tensor(name) for name in checkpoints._variables(model)]
        values = [variable.numpy() for variable in checkpoints._variables(plain).values()]
        assert len(stored) == len(values) == 8 and difference(stored, values) == 0


def test_a_checkpoint_of_another_model_is_refused(tracing, tmp_path):
    prefix = parallax.keras.save_checkpoint(compiled(), tmp_path, 1)
    other = keras.Sequential([keras.Input((2,)), layers.Dense(3, name="other")])
    with pytest.raises(CheckpointError, match=r"has no sequential.*other/kernel of shape \[2, 3\]"):
        parallax.keras.load_checkpoint(other, prefix)
    with pytest.raises(CheckpointError, match="it does not exist"):
        parallax.keras.load_checkpoint(other, tmp_path / "none")
