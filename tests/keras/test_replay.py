"""A worker of a later call of `fit` takes over what earlier ones have trained, and refuses other input."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from parallax.errors import SessionError
from parallax.functions.input_digests import check_input, digest_of_input
from parallax.keras.fitting import read_fit
from parallax.keras.results import forget_values, replay, result_of
from tests.keras import here

X = np.random.RandomState(0).rand(22, 4).astype("float32")
Y = np.random.RandomState(1).rand(22, 1).astype("float32")


def net(is_built=True):
    """A model with dropout, batch normalization and a metric."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(5)
    inputs = [keras.Input((4,))] if is_built else []
    layers = [
        keras.layers.Dense(3),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.3),
        keras.layers.Dense(1),
    ]
    model = keras.Sequential([*inputs, *layers])
    model.compile(keras.optimizers.Adam(0.05), "mse", metrics=["mae"])
    return model


def fitted(model, monkeypatch):
    """What `fit` gives the launching process of a model, which it trains."""
    results = []

    def noted(*args):
        results.append(result_of(*args))
        return dict(results[-1])

    monkeypatch.setattr(here, "result_of", noted)
    early = keras.callbacks.EarlyStopping("loss", patience=0, min_delta=10.0)
    here.fit_here(model, X, Y, batch_size=8, epochs=3, verbose=0, callbacks=[early])
    return results[0]


@pytest.mark.parametrize("is_built", [True, False])
def test_a_replayed_fit_leaves_the_model_as_the_job_left_it(monkeypatch, is_built):
    trained, model = net(is_built), net(is_built)
    result = fitted(trained, monkeypatch)
    early = keras.callbacks.EarlyStopping("loss", patience=0, min_delta=10.0)
    arguments = {"x": X, "y": Y, "batch_size": 8, "callbacks": [early]}
    history = replay(model, result, arguments, lambda: read_fit(model, dict(arguments)))
    assert history.history == result["history"] and early.stopped_epoch == 1
    np.testing.assert_array_equal(model.predict(X, verbose=0), trained.predict(X, verbose=0))
    for mine, other in (
        (model.variables, trained.variables),
        (model.optimizer.variables, trained.optimizer.variables),
        ([v for m in model.metrics for v in m.variables], [v for m in trained.metrics for v in m.variables]),
    ):
        assert len(mine) == len(other)
        for one, two in zip(mine, other, strict=True):
            np.testing.assert_array_equal(one.numpy(), two.numpy())


def test_a_model_that_has_its_variables_is_not_traced_for_a_replay(monkeypatch):
    model = net()
    result = fitted(model, monkeypatch)
    model.layers[0].kernel.assign(tf.zeros([4, 3]))
    replay(model, result, {"x": X, "y": Y}, pytest.fail)
    assert np.abs(model.layers[0].kernel.numpy()).min() > 0


def test_a_model_with_other_variables_is_not_taken_for_a_trained_one(monkeypatch):
    result = fitted(net(), monkeypatch)
    other = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, name="other")])
    other.compile("sgd", "mse")
    with pytest.raises(SessionError, match="has no variable '.*' here.*same models in the same order"):
        replay(other, result, {"x": X, "y": Y}, lambda: read_fit(other, {"x": X, "y": Y}))


def test_values_of_the_earliest_calls_are_forgotten_where_all_are_too_many(caplog):
    results = [{"values": {"w": np.zeros(10, np.float32)}} for _ in range(3)]
    forget_values(results, 85)
    assert [sorted(one["values"]) for one in results] == [[], ["w"], ["w"]]
    assert "is more than 85 B" in caplog.text


def like(first, second):
    return digest_of_input(first).is_like(digest_of_input(second))


LARGE = np.random.RandomState(2).rand(3_000_000, 2)


@pytest.mark.parametrize(
    ("data", "rounded", "others"),
    [
        (X, X * (1 + 1e-6), [X + 0.01, X[::-1], X[:-1], X.astype("float64"), np.where(X == X.max(), 0, X)]),
        (LARGE, LARGE + 1e-9, [LARGE[::-1], np.random.RandomState(3).rand(3_000_000, 2)]),
        (np.float16(X), np.float16(X * 1.001), [np.float16(X + 0.1)]),
        (np.arange(9), np.arange(9), [np.arange(1, 10), np.arange(9)[::-1]]),
        (tf.constant(["a", "b"]), tf.constant(["a", "b"]), [tf.constant(["a", "c"])]),
        (tf.ragged.constant([[1, 2], [3]]), tf.ragged.constant([[1, 2], [3]]), [tf.ragged.constant([[1], [2, 3]])]),
        ({"x": X, "y": None}, {"x": X, "y": None}, [{"x": X, "y": Y}]),
        (np.array([np.nan, 1.0]), np.array([np.nan, 1.0]), [np.array([0.0, 1.0])]),
        ([np.zeros([0, 3])], [np.zeros([0, 3])], [[np.zeros([0, 4])]]),
    ],
)
def test_inputs_are_compared_up_to_rounding(data, rounded, others):
    assert like(data, rounded)
    assert not any(like(data, other) for other in others)


def test_a_dataset_is_compared_by_what_it_is_made_of():
    def dataset(x, shuffled=True):
        made = tf.data.Dataset.zip(tf.data.Dataset.from_tensor_slices(x), tf.data.Dataset.from_tensor_slices(Y))
        return (made.shuffle(30) if shuffled else made).map(lambda x, y: (x + 1, y)).batch(4)

    assert like(dataset(X), dataset(X)) and not like(dataset(X), dataset(X + 1))


@pytest.mark.parametrize("make", [tf.data.Dataset.from_tensor_slices, tf.data.Dataset.from_tensors])
@pytest.mark.parametrize("kind", ["ragged", "ragged twice", "sparse"])
def test_a_dataset_of_ragged_or_sparse_rows_is_compared_by_their_values(make, kind):
    def dataset(last):
        if kind == "sparse":
            return make((tf.sparse.from_dense([[1, 0], [0, last]]), Y[:2])).batch(2)
        rows = [[1, 2], [last]] if kind == "ragged" else [[[1], [2, 3]], [[last]]]
        return make((tf.ragged.constant(rows), Y[:2])).batch(2)

    assert like(dataset(4), dataset(4)) and not like(dataset(4), dataset(5))


@pytest.mark.parametrize("kind", ["arrays", "generator", "validation"])
def test_what_fit_is_given_is_compared(kind):
    def data(x):
        if kind == "generator":
            return read_fit(net(), {"x": ((x[n : n + 4], Y[n : n + 4]) for n in range(0, 20, 4))}).data
        if kind == "validation":
            return read_fit(net(), {"x": X, "y": Y, "validation_data": (x, Y)}).data
        return read_fit(net(), {"x": x, "y": Y}).data

    launched = digest_of_input(data(X))
    check_input(2, data(X), launched)
    with pytest.raises(SessionError, match="gives to call 2 of the program differs.*Seed what is drawn"):
        check_input(2, data(X + 1), launched)
