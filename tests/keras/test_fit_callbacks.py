"""What each callback of Keras does in `fit` here is what it does in plain Keras; and so with the user's own."""

import csv
import itertools

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.keras.here import check, difference, fit_here, fit_plainly, outcome
from tests.keras.two_here import outcome_of_two

layers, callbacks = keras.layers, keras.callbacks
X = np.random.RandomState(1).rand(20, 4).astype("float32")
Y = np.random.RandomState(2).randint(0, 2, (20, 1)).astype("float32")


@pytest.fixture
def folder(tmp_path):
    """A folder for each of the two trainings that are compared."""
    numbers = itertools.count()

    def new():
        made = tmp_path / f"{next(numbers)}"
        made.mkdir()
        return made

    return new


def compiled(optimizer=None, rate=0.05):
    model = keras.Sequential([keras.Input((4,)), layers.Dense(3, "tanh"), layers.Dense(1, "sigmoid")])
    model.compile(optimizer or keras.optimizers.Adam(rate), "binary_crossentropy", metrics=["accuracy"])
    return model


def trained(train, model, given, epochs=3, **more):
    return train(model, X, Y, epochs=epochs, batch_size=5, verbose=0, callbacks=given, **more)


def arrays_of(file):
    """All arrays of a weights file, by name."""
    found = {}
    with h5py.File(file) as opened:
        opened.visititems(lambda name, one: found.update({name: one[()]}) if isinstance(one, h5py.Dataset) else None)
    return found


@pytest.mark.rotates
def test_weights_are_saved_after_epochs_and_batches(folder):
    def make(train):
        model, own = compiled(), folder()
        best = callbacks.ModelCheckpoint(
            own / "best.weights.h5", "val_loss", save_best_only=True, save_weights_only=True, initial_value_threshold=9
        )
        each = callbacks.ModelCheckpoint(f"{own}/{{epoch}}-{{loss:.4f}}.weights.h5", save_weights_only=True)
        batches = callbacks.ModelCheckpoint(
            f"{own}/b{{epoch}}-{{batch}}.weights.h5", save_weights_only=True, save_freq=3
        )
        trained(train, model, [best, each, batches], validation_split=0.25)
        return model, ({file.name: arrays_of(file) for file in own.iterdir()}, best.best)

    assert len(check(make)["found"][0]) == 1 + 3 + 3


@pytest.mark.rotates
def test_whole_models_are_saved_and_go_on_elsewhere(folder):
    def make(train):
        model, own = compiled(), folder()
        trained(train, model, [callbacks.ModelCheckpoint(own / "model.keras")])
        again = keras.models.load_model(own / "model.keras")
        evaluated = again.evaluate(X, Y, verbose=0)
        after = trained(train, again, [], epochs=2)
        return again, (evaluated, after.history, model.get_weights())

    check(make)


@pytest.mark.rotates
def test_a_training_that_was_interrupted_is_restored_where_it_ended(folder):
    class Interrupted(Exception):
        pass

    class Interrupts(callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise Interrupted

    def make(train):
        own = folder() / "backup"
        with pytest.raises(Interrupted):
            trained(train, compiled(), [callbacks.BackupAndRestore(own), Interrupts()], epochs=4)
        kept = arrays_of(own / "latest.weights.h5")
        model = compiled()
        history = trained(train, model, [callbacks.BackupAndRestore(own)], epochs=4)
        return model, (kept, history.history, history.epoch, own.exists())

    assert check(make)["found"][2] == [2, 3]


@pytest.mark.rotates
def test_an_epoch_that_was_interrupted_begins_again_with_the_weights_that_it_had_reached(folder):
    class Interrupted(Exception):
        pass

    class Interrupts(callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if self.model.optimizer.iterations.numpy() == 7:
                raise Interrupted

    def make(train):
        own = folder() / "backup"
        with pytest.raises(Interrupted):
            backup = callbacks.BackupAndRestore(own, save_freq=6)
            trained(train, compiled(), [backup, Interrupts()], shuffle=False)
        model = compiled()
        history = trained(train, model, [callbacks.BackupAndRestore(own)], shuffle=False)
        return model, (history.history, history.epoch, int(model.optimizer.iterations.numpy()))

    *_, epochs, steps = check(make)["found"]
    assert (epochs, steps) == ([1, 2], 6 + 2 * 4)  # of the four batches of the second epoch two are seen twice


def test_training_stops_early_with_the_best_weights():
    def make(train):
        model = compiled(rate=2.0)
        early = callbacks.EarlyStopping("loss", min_delta=0.2, restore_best_weights=True)
        history = trained(train, model, [early], epochs=8)
        return model, (history.history, early.stopped_epoch, early.best_epoch, early.best)

    assert len(check(make)["found"][0]["loss"]) < 8


@pytest.mark.rotates
def test_the_rate_is_reduced_on_a_plateau():
    def make(train):
        model = compiled(rate=1.0)
        reduce = callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=0.1)
        return model, trained(train, model, [reduce], epochs=5).history

    assert check(make)["rate"] < 1.0


@pytest.mark.rotates
def test_the_rate_is_scheduled():
    def make(train):
        model = compiled()
        scheduler = callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.7 if epoch else rate)
        return model, trained(train, model, [scheduler]).history

    assert check(make)["rate"] == pytest.approx(0.05 * 0.49)


@pytest.mark.rotates
def test_scalars_and_histograms_are_written_for_tensorboard(folder):

    def make(train):
        model, own = compiled(), folder()
        board = callbacks.TensorBoard(own, histogram_freq=2, update_freq=2, embeddings_freq=2, profile_batch=2)
        trained(train, model, [board], epochs=2)
        assert (own / "projector_config.pbtxt").exists() and list(own.rglob("*.xplane.pb"))
        found = {}
        for file in sorted(own.rglob("*tfevents*")):
            for event in tf.compat.v1.train.summary_iterator(str(file)):
                for value in event.summary.value:
                    if value.tag != "keras" and "steps_per_second" not in value.tag:
                        found[f"{file.parent.name} {value.tag} {event.step}"] = tf.make_ndarray(value.tensor)
        return model, {name: value for name, value in found.items() if value.dtype != object}

    found = check(make)["found"]
    assert any("epoch_loss 1" in name for name in found) and any("histogram" in name for name in found)


@keras.saving.register_keras_serializable()
class Watched(keras.layers.Layer):
    """Writes summaries of its inputs."""

    def call(self, x):
        tf.summary.scalar("largest", tf.reduce_max(x))
        tf.summary.histogram("inputs", x, buckets=4)
        return x


@pytest.mark.parametrize("frequency", [1, 2])
def test_summaries_of_a_layer_are_written_for_tensorboard(folder, frequency):
    def make(train):
        model, own = keras.Sequential([keras.Input([4]), Watched(), keras.layers.Dense(1)]), folder()
        model.compile("sgd", "mse")
        trained(train, model, [callbacks.TensorBoard(own, update_freq=frequency)], epochs=2, validation_split=0.25)
        events = {file.parent.name: summary_events(file) for file in sorted(own.rglob("*tfevents*"))}
        return model, {place: [one for one in seen if "watched" in one[0]] for place, seen in events.items()}

    found, two, plain = check(make)["found"], outcome_of_two(make), outcome(fit_plainly, make)
    assert difference(two, plain) < 1e-5
    assert [len(found[place]) for place in ("train", "validation")] == ([12, 4] if frequency == 1 else [0, 0])


def summary_events(file):
    """(tag, step, tensor) of each summary of a file, in order."""
    events = tf.compat.v1.train.summary_iterator(str(file))
    return [(one.tag, event.step, tf.make_ndarray(one.tensor)) for event in events for one in event.summary.value]


@pytest.mark.rotates
def test_numbers_are_written_as_table_and_as_progress(folder, capsys):
    def make(train):
        model, own = compiled(), folder()
        capsys.readouterr()
        shown = callbacks.CSVLogger(own / "log.csv")
        train(model, X, Y, epochs=2, batch_size=5, verbose=2, callbacks=[shown], validation_split=0.2)
        lines = [line for line in capsys.readouterr().out.splitlines() if "loss" in line]
        told = [line.split(" - ")[3:] for line in lines]
        with (own / "log.csv").open() as file:
            rows = list(csv.reader(file))
        return model, (rows, told)

    rows, told = check(make)["found"]
    assert len(rows) == 3 and len(told) == 2


@pytest.mark.rotates
def test_functions_are_called_with_numbers_of_batches_and_epochs():
    def make(train):
        model, seen = compiled(), []

        def sees(kind):
            return lambda number, logs: seen.append((kind, number, sorted(logs or {}), (logs or {}).get("loss", 0)))

        one = callbacks.LambdaCallback(
            on_epoch_begin=sees("begin"), on_epoch_end=sees("end"), on_train_batch_end=sees("batch")
        )
        trained(train, model, [one], epochs=2, validation_split=0.25)
        return model, seen

    assert len(check(make)["found"]) == 2 * (1 + 3 + 1)


@pytest.mark.rotates
def test_training_ends_at_a_loss_that_is_no_number():
    def make(train):
        model = compiled(keras.optimizers.SGD(1e30))
        model.compile(keras.optimizers.SGD(1e30), "mse")
        x = X * 1e20
        history = train(model, x, Y * 1e30, epochs=3, batch_size=5, verbose=0, callbacks=[callbacks.TerminateOnNaN()])
        return model, (history.epoch, int(model.stop_training))

    assert check(make)["found"] == ([0], 1)


@pytest.mark.rotates
def test_averaged_weights_are_swapped_in_for_validation(folder):
    def make(train):
        model, own = compiled(keras.optimizers.Adam(0.05, use_ema=True, ema_momentum=0.6)), folder()
        given = [
            callbacks.SwapEMAWeights(swap_on_epoch=True),
            callbacks.ModelCheckpoint(own / "averaged.weights.h5", save_weights_only=True),
        ]
        history = trained(train, model, given, validation_split=0.25)
        return model, (history.history, arrays_of(own / "averaged.weights.h5"))

    check(make)


class Meddles(callbacks.Callback):
    """Reads, writes, evaluates and predicts in the middle of training."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_begin(self, logs=None):
        self.seen.append(float(np.sum(self.model.predict(X, verbose=0))))

    def on_train_batch_end(self, batch, logs=None):
        kernel = self.model.layers[0].kernel
        self.seen.append(float(np.abs(kernel.numpy()).sum()))
        if batch == 1:
            kernel.assign(kernel * 0.9)
            self.model.optimizer.learning_rate = 0.9 * float(self.model.optimizer.learning_rate)
        if batch == 2:
            self.seen.append(float(self.model(X[:3]).numpy().sum()))

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append(self.model.evaluate(X[:7], Y[:7], verbose=0))
        self.seen.append(float(np.sum(self.model.predict(X[:6], batch_size=4, verbose=0))))
        self.model.set_weights([w + 0.01 for w in self.model.get_weights()])
        self.seen.append(int(self.model.optimizer.iterations))
        logs["of_mine"] = float(epoch)


@pytest.mark.rotates
def test_a_callback_of_the_users_own_reads_writes_evaluates_and_predicts_in_the_middle():
    def make(train):
        model, one = compiled(), Meddles()
        history = trained(train, model, [one], validation_data=(X, Y))
        return model, (history.history, one.seen)

    check(make)


@pytest.mark.rotates
def test_what_callbacks_know_at_the_end_is_known_where_the_script_goes_on():
    def make(train):
        model, early = compiled(rate=2.0), callbacks.EarlyStopping("loss", patience=1)
        trained(train, model, [early], epochs=6)
        return model, (early.best, early.wait, early.stopped_epoch)

    here, plain = outcome(fit_here, make), outcome(fit_plainly, make)
    assert difference(here["found"], plain["found"]) <= 1e-6
