"""Input and arguments of `fit` of every kind: history, weights, slots and rate are plain Keras's."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from parallax.analysis.graph_to_plan import analyse
from parallax.keras.arrays import index_input, index_validation
from parallax.keras.fitting import read_fit
from parallax.keras.inputs import batch_length, row_numbers
from tests.keras.here import check

layers = keras.layers
X = np.random.RandomState(1).rand(22, 4).astype("float32")
Y = np.random.RandomState(2).randint(0, 2, (22, 1)).astype("float32")
W = np.random.RandomState(3).rand(22).astype("float32")


def compiled(**options):
    model = keras.Sequential([keras.Input((4,)), layers.Dense(3, "tanh"), layers.Dense(1, "sigmoid")])
    given = {"optimizer": keras.optimizers.SGD(0.1, momentum=0.9), "metrics": ["accuracy"], **options}
    model.compile(loss="binary_crossentropy", **given)
    return model


class Sequence(keras.utils.PyDataset):
    """Batches of five, and their order drawn anew after each epoch."""

    def __init__(self):
        super().__init__()
        self.order = np.arange(5)

    def __len__(self):
        return 5

    def __getitem__(self, number):
        rows = slice(5 * self.order[number], 5 * self.order[number] + 5)
        return X[rows], Y[rows]

    def on_epoch_end(self):
        self.order = self.order[::-1]


def _generator(endless=True):
    while True:
        for first in range(0, 20, 4):
            yield X[first : first + 4], Y[first : first + 4]
        if not endless:
            return


def _dataset(batch=5):
    return tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(30, seed=5).batch(batch)


def _dicts():
    return tf.data.Dataset.from_tensor_slices(({"x": X, "z": W[:, None]}, Y, W)).batch(5)


INPUTS = {
    "arrays": lambda: {"x": X, "y": Y, "batch_size": 5},
    "arrays in order": lambda: {"x": X, "y": Y, "batch_size": 6, "shuffle": False},
    "arrays by batches in any order": lambda: {"x": X, "y": Y, "batch_size": 5, "shuffle": "batch"},
    "arrays, an epoch and a half at a time": lambda: {"x": X, "y": Y, "batch_size": 5, "steps_per_epoch": 3},
    "arrays of doubles": lambda: {"x": X.astype(np.float64), "y": Y.astype(np.float64), "batch_size": 5},
    "tensors": lambda: {"x": tf.constant(X), "y": tf.constant(Y), "batch_size": 8},
    "batch size of 32": lambda: {"x": X, "y": Y},
    "sample weights": lambda: {"x": X, "y": Y, "sample_weight": W, "batch_size": 5},
    "class weights": lambda: {"x": X, "y": Y, "class_weight": {0: 0.3, 1: 2.0}, "batch_size": 5},
    "dataset": lambda: {"x": _dataset()},
    "dataset and class weights": lambda: {"x": _dataset(), "class_weight": {0: 0.3, 1: 2.0}},
    "repeated dataset": lambda: {"x": _dataset(4).repeat(), "steps_per_epoch": 3},
    "repeated dataset, all steps": lambda: {"x": _dataset(4).repeat(2), "steps_per_epoch": 4},
    "sequence": lambda: {"x": Sequence()},
    "generator": lambda: {"x": _generator(), "steps_per_epoch": 5},
    "validation arrays": lambda: {"x": X, "y": Y, "batch_size": 5, "validation_data": (X[:9], Y[:9])},
    "weighted validation": lambda: {"x": X, "y": Y, "validation_data": (X[:9], Y[:9], W[:9]), "batch_size": 5},
    "validation batches": lambda: {"x": X, "y": Y, "validation_data": (X, Y), "validation_batch_size": 7},
    "validation dataset": lambda: {"x": X, "y": Y, "validation_data": _dataset(4)},
    "validation steps": lambda: {"x": X, "y": Y, "validation_data": _dataset(4).repeat(), "validation_steps": 2},
    "validation generator": lambda: {
        "x": X,
        "y": Y,
        "validation_data": _generator(),
        "epochs": 1,
        "validation_steps": 3,
    },
    "validation sequence": lambda: {"x": X, "y": Y, "validation_data": Sequence()},
    "split": lambda: {"x": X, "y": Y, "validation_split": 0.25, "batch_size": 5},
    "weighted split": lambda: {"x": X, "y": Y, "sample_weight": W, "validation_split": 0.25, "batch_size": 5},
    "validation now and then": lambda: {"x": _dataset(), "validation_data": (X, Y), "validation_freq": 2},
    "validation at times": lambda: {"x": _dataset(), "validation_data": (X, Y), "validation_freq": [1, 3]},
    "later epochs": lambda: {"x": _dataset(), "initial_epoch": 1, "epochs": 3},
}


@pytest.mark.rotates
@pytest.mark.parametrize("kind", INPUTS)
def test_input_of_any_kind_is_read_as_by_plain_keras(kind):
    def make(train):
        model = compiled()
        arguments = {"epochs": 3, "verbose": 0, **INPUTS[kind]()}
        history = train(model, **arguments)
        return model, (history.history, history.epoch)

    check(make)


@pytest.mark.rotates
def test_what_becomes_of_an_array_during_fit_is_not_seen():
    def make(train):
        model, x = compiled(), X.copy()
        change = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: x.fill(0.0))
        history = train(model, x, Y, batch_size=5, epochs=2, verbose=0, callbacks=[change])
        return model, history.history

    check(make)


@pytest.mark.rotates
def test_a_worker_takes_its_rows_of_arrays_and_of_nothing_else():
    fit = read_fit(compiled(), {"x": X, "y": Y, "batch_size": 5, "validation_data": _dataset()})
    arguments = dict(fit.arguments)
    arrays = index_input(fit.model, arguments, fit.traced["train"].spec)
    assert row_numbers(arguments["x"], "train").tolist() == list(range(22)) and arguments["y"] is None
    assert [rows[1:3].tolist() for rows in arrays.batch(np.array([7, 3, 9]))] == [
        X[[3, 9]].tolist(),
        Y[[3, 9]].tolist(),
    ]
    assert index_validation(fit.model, arguments, fit.traced["test"].spec) is None
    assert arguments["validation_data"] is fit.arguments["validation_data"]


@pytest.mark.rotates
def test_a_generator_that_ends_is_one_epoch_and_each_batch_counts_once():
    def make(train):
        model = compiled(optimizer="sgd")
        history = train(model, _generator(endless=False), verbose=0)
        # Keras's own count of steps is now and then one more: its step at the end, without a batch, may count.
        model.optimizer.iterations.assign(min(5, int(model.optimizer.iterations)))
        return model, history.history

    check(make)


@pytest.mark.rotates
def test_steps_per_execution_change_what_callbacks_see_and_nothing_else():
    def make(train):
        model = compiled(steps_per_execution=3)
        seen = []
        look = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append((batch, logs["loss"])))
        history = train(model, _dataset(3), epochs=2, verbose=0, callbacks=[look], validation_data=_dataset(3))
        return model, (history.history, seen)

    check(make)


@pytest.mark.rotates
def test_batches_of_dictionaries_with_sample_weights():
    def make(train):
        x, z = keras.Input((4,), name="x"), keras.Input((1,), name="z")
        model = keras.Model({"x": x, "z": z}, layers.Dense(1, "sigmoid")(layers.Concatenate()([x, z])))
        model.compile("sgd", "binary_crossentropy", weighted_metrics=["accuracy"])
        return model, train(model, _dicts(), epochs=2, verbose=0).history

    check(make)


@pytest.mark.rotates
def test_masked_sequences_are_input_as_well():
    def make(train):
        ids = keras.Input((None,), dtype="int32")
        out = layers.Dense(1, "sigmoid")(layers.LSTM(3)(layers.Embedding(9, 2, mask_zero=True)(ids)))
        model = keras.Model(ids, out)
        model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
        x = np.where(np.arange(6) < np.random.RandomState(4).randint(1, 6, (22, 1)), 1 + np.arange(6) % 8, 0)
        return model, train(model, x, Y, epochs=2, batch_size=8, verbose=0).history

    check(make)


@pytest.mark.rotates
def test_a_second_fit_goes_on_where_the_first_ended():
    def make(train):
        model = compiled()
        first = train(model, X, Y, epochs=2, batch_size=5, verbose=0)
        between = model.evaluate(X, Y, verbose=0, return_dict=True)
        second = train(model, X, Y, epochs=4, initial_epoch=2, batch_size=4, verbose=0, validation_data=(X, Y))
        return model, (first.history, between, second.history, second.epoch)

    check(make)


@pytest.mark.rotates
def test_a_model_is_compiled_anew_between_two_fits():
    def make(train):
        model = compiled()
        first = train(model, X, Y, epochs=2, batch_size=5, verbose=0)
        model.layers[0].trainable = False
        model.compile(keras.optimizers.SGD(0.1, momentum=0.5), "mse", metrics=["mae"])
        second = train(model, X, Y, epochs=2, batch_size=4, verbose=0)
        return model, (first.history, second.history)

    check(make)


@pytest.mark.rotates
def test_training_stops_when_a_batch_says_so():
    def make(train):
        model = compiled()

        class Stop(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                if batch == 2:
                    self.model.stop_training = True

        history = train(model, X, Y, epochs=4, batch_size=4, verbose=0, callbacks=[Stop()])
        return model, (history.history, int(model.stop_training))

    check(make)


@pytest.mark.rotates
def test_the_plan_counts_the_ids_of_a_workers_share_of_a_batch():
    ids = keras.Input((3,), dtype="int32")
    rows = [keras.layers.Embedding(50, 4, name=f"table_{i}")(ids[:, i]) for i in range(3)]
    model = keras.Model(ids, keras.layers.Dense(1)(keras.layers.Concatenate()(rows)))
    model.compile("sgd", "mse")
    data = tf.data.Dataset.from_tensor_slices((np.zeros([40, 3], np.int32), np.zeros([40, 1], np.float32)))
    for x, batch_size in ((data.batch(10).prefetch(1), None), (data.batch(10, drop_remainder=True).repeat(), None)):
        spec = analyse(read_fit(model, {"x": x, "batch_size": batch_size}, parts=3).graph.graph).spec
        assert [v.ids_per_step for v in spec.variables if v.name.startswith("table_")] == [4, 4, 4]


@pytest.mark.rotates
def test_the_length_of_a_batch_is_told_before_one_is_read():
    arrays = np.zeros([40, 3])
    assert batch_length(arrays, None) == 32 and batch_length({"a": arrays}, 8) == 8
    assert batch_length((one for one in [arrays]), None) == 0
