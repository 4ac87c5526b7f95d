"""A fit with checkpoints of steps, killed once in its third epoch: FOLDER KIND [plain], for plain Keras, which is not.

KIND names the input, from shuffled arrays to a generator; "late" is arrays with a first checkpoint after the kill,
and "preempted" the same with SIGTERM.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import parallax.keras

folder, kind, is_plain = Path(sys.argv[1]), sys.argv[2], "plain" in sys.argv
if not is_plain:
    saved = parallax.CheckPointConfig(folder / "saved", save_ckpt_steps=1000 if kind in ("late", "preempted") else 1)
    parallax.keras.use(None, parallax.Config(ckpt_config=saved))
keras.utils.set_random_seed(4)
random = np.random.RandomState(0)
x, y = random.randint(0, 40, (30, 3)).astype("int32"), random.rand(30, 1).astype("float32")
ids = keras.Input((3,), dtype="int32")
rows = keras.layers.Flatten()(keras.layers.Embedding(40, 4)(ids))
model = keras.Model(ids, keras.layers.Dense(1)(keras.layers.Dense(3, activation="tanh")(rows)))
model.compile(keras.optimizers.Adam(0.02), "mse", metrics=["mae"], steps_per_execution=2 if kind == "twice" else 1)


def drawn():
    """Batches that are drawn one after the other, without an end."""
    own = np.random.RandomState(1)
    while True:
        chosen = own.randint(0, 30, 9)
        yield x[chosen], y[chosen]


dataset = tf.data.Dataset.from_tensor_slices((x, y))
inputs = {
    "arrays": {"x": x, "y": y, "batch_size": 9},
    "late": {"x": x, "y": y, "batch_size": 9},
    "preempted": {"x": x, "y": y, "batch_size": 9},
    "twice": {"x": x, "y": y, "batch_size": 9},
    "dataset": {"x": dataset.shuffle(30, seed=5).batch(9)},
    "unknown": {"x": dataset.filter(lambda ids, _: ids[0] != 7).shuffle(9, seed=5).batch(9)},
    "repeated": {"x": dataset.shuffle(30, seed=5).batch(9).repeat(), "steps_per_epoch": 4},
    "generator": {"x": drawn(), "steps_per_epoch": 4},
}


def wait_for_checkpoint(step):
    """Waits until one of this step or a later one is there: it is written while training goes on."""
    until_s = time.monotonic() + 60
    while time.monotonic() < until_s:
        if any(int(path.stem.rpartition("-")[2]) >= step for path in (folder / "saved").glob("model.ckpt-*.index")):
            return
        time.sleep(0.02)
    raise TimeoutError(f"no checkpoint of step {step}")


class Kills(keras.callbacks.Callback):
    """Kills this process in the middle of epoch 2 of the first run; notes which epochs there are."""

    def on_train_begin(self, logs=None):
        self.seen = []

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if kind == "preempted" and (folder / "killed").exists():
            time.sleep(1)  # the launcher has its word passed on meanwhile
        self.seen.append([self.epoch, batch])
        if not is_plain and self.epoch == 2 and batch in (1, 2) and not (folder / "killed").exists():
            (folder / "killed").touch()
            if kind not in ("late", "preempted"):
                wait_for_checkpoint(4 * self.epoch + 1)
            os.kill(os.getpid(), signal.SIGTERM if kind == "preempted" else signal.SIGKILL)


kills = Kills()
history = model.fit(**inputs[kind], epochs=4, verbose=0, callbacks=[kills])
found = {
    "last": {name: values[-1] for name, values in history.history.items()},
    "weights": [weight.tolist() for weight in model.get_weights()],
    "optimizer": [np.asarray(v).tolist() for v in model.optimizer.variables],
}
print("FOUND " + json.dumps(found), flush=True)
print("SEEN " + json.dumps([history.epoch, kills.seen]), flush=True)
