"""What a script does around its fits: by workers that never run it, it is done once, as in plain Keras."""

import json
import os
import signal
import sys
from pathlib import Path

import keras
import numpy as np
from worker_processes import find_worker

import parallax.keras

kind, folder = sys.argv[1], Path(sys.argv[2])
if kind != "plain":
    parallax.keras.use()
print("BEFORE")
(folder / "made").mkdir()  # fails where it is done twice
keras.utils.set_random_seed(3)
ids = np.random.default_rng(1).integers(0, 50, [70, 4])
labels = (ids % 2).mean(1, keepdims=True).astype("float32")
seen = []


def made():
    layers = [keras.layers.Embedding(50, 4), keras.layers.Flatten(), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.Adagrad(0.1), "mse", metrics=["mae"])
    return model


class Logging(keras.Sequential):
    """Logs a number and a row for each example beside its metrics."""

    def train_step(self, data):
        rows = keras.ops.mean(keras.ops.cast(data[0], "float32"), axis=1)
        return {**super().train_step(data), "each": rows, "spread": keras.ops.mean(keras.ops.square(rows))}


class Watching(keras.callbacks.Callback):
    """Knows objects of the script, reads weights, predicts, and sets the rate."""

    def on_epoch_end(self, epoch, logs=None):
        seen.append([logs["loss"], float(np.sum(self.model.get_weights()[0]))])
        seen.append(float(np.mean(self.model.predict(ids[:9], verbose=0))))
        self.model.optimizer.learning_rate = 0.05


class Breaking(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 1:
            raise KeyError("a callback that breaks")


def pieces():
    for first in range(0, 70, 16):
        yield ids[first : first + 16], labels[first : first + 16]


teacher = made()
teacher.fit(ids, labels, batch_size=16, epochs=2, verbose=0, callbacks=[Watching()], validation_split=0.1)
logging = Logging([keras.layers.Embedding(50, 4), keras.layers.Flatten(), keras.layers.Dense(1)])
logging.compile("sgd", "mse")
own = keras.callbacks.LambdaCallback(
    on_train_batch_end=lambda batch, logs: seen.append([float(logs["spread"]), np.asarray(logs["each"]).tolist()])
)
logging.fit(ids, labels, batch_size=32, shuffle=False, verbose=0, callbacks=[own])
student = made()
judge = keras.callbacks.LambdaCallback(
    on_epoch_end=lambda epoch, logs: seen.append(student.evaluate(ids, labels, verbose=0))
)
weighing = keras.callbacks.LambdaCallback(  # which the step for validation does not take
    on_epoch_end=lambda epoch, logs: seen.append(
        student.evaluate(ids, labels, sample_weight=np.arange(70.0), verbose=0)
    )
)
answers = teacher.predict(ids, verbose=0)
student.fit(ids, answers, 16, epochs=2, verbose=0, callbacks=[judge, weighing], validation_data=(ids, labels))
try:
    student.fit(ids, labels, batch_size=16, verbose=0, callbacks=[Breaking()])
except KeyError:
    seen.append(float(np.sum(student.get_weights()[0])))  # as the second batch has left them
student.fit(pieces(), verbose=0)
if kind == "killed":
    models = []
    for _ in range(2):
        keras.utils.set_random_seed(5)
        models.append(made())
    once, fallen = models
    once.fit(ids, labels, shuffle=False, verbose=0)
    epochs = []
    kill = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: epochs.append(epoch),
        on_train_batch_end=lambda batch, logs: epochs == [0, 1] and os.kill(find_worker(1), signal.SIGKILL),
    )
    try:
        fallen.fit(ids, labels, epochs=2, shuffle=False, verbose=0, callbacks=[kill])
    except SystemExit as failed:
        apart = max(np.abs(a - b).max() for a, b in zip(once.get_weights(), fallen.get_weights(), strict=True))
        print(f"FAILED {failed.code}, and weights are those of the epoch's end: {apart < 1e-6}")
        raise
weights = [w.tolist() for one in (teacher, student) for w in one.get_weights()]
print("FOUND " + json.dumps({"seen": seen, "weights": weights, "losses": student.evaluate(ids, labels, verbose=0)}))
