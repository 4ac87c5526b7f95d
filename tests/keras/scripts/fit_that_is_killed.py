"""A fit whose workers are killed in its third epoch: FOLDER KIND VICTIM [plain], for plain Keras.

KIND is "backup" for a callback that lets the script go on when it is run again, "files" for checkpoints of steps, or
the kind of input of a fit that keeps nothing: "arrays", "generator"; "bases" are arrays whose variables are read before
each step, "full" ones of which too much would be kept. VICTIM is a rank, or "script" for this process.
"""

import itertools
import json
import os
import signal
import sys
from pathlib import Path

import keras
import numpy as np
from worker_processes import find_worker

import parallax
import parallax.keras
from parallax.functions.remote import remote_steps

folder, kind, victim, is_plain = Path(sys.argv[1]), sys.argv[2], sys.argv[3], "plain" in sys.argv
if not is_plain:
    saved = parallax.CheckPointConfig(folder / "saved", save_ckpt_steps=3) if kind == "files" else None
    parallax.keras.use(None, parallax.Config(ckpt_config=saved))
if kind == "bases":
    remote_steps._BASE_S = remote_steps._BASE_COSTS = 0
if kind == "full":
    remote_steps._KEPT_BYTES = 100
keras.utils.set_random_seed(4)
random = np.random.RandomState(0)
x, y = random.randint(0, 40, (30, 3)).astype("int32"), random.rand(30, 1).astype("float32")
ids = keras.Input((3,), dtype="int32")
model = keras.Model(ids, keras.layers.Dense(1)(keras.layers.Flatten()(keras.layers.Embedding(40, 4)(ids))))
model.compile(keras.optimizers.Adam(0.02), "mse", metrics=["mae"])


class Kills(keras.callbacks.Callback):
    """Kills the victim in the middle of epoch 2, of the first run alone; changes the learning rate and metrics."""

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
        if epoch == 3:
            self.model.optimizer.learning_rate = 0.01

    def on_train_batch_end(self, batch, logs=None):
        if (self.epoch, batch) == (2, 0):
            model.evaluate(x[:5], y[:5], verbose=0)  # between the steps of an epoch
        if (self.epoch, batch) == (2, 1) and not (folder / "killed").exists():
            (folder / "killed").touch()
            if victim == "script" or not is_plain:
                os.kill(os.getpid() if victim == "script" else find_worker(int(victim)), signal.SIGKILL)


def pieces():
    """Batches in an array that is used again."""
    own = np.random.RandomState(1)
    taken = np.zeros((9, 3), "int32")
    for number in itertools.count():
        if is_plain and number >= 2:  # both of the first are taken before training; then plain Keras may read too early
            taken = np.zeros((9, 3), "int32")
        chosen = own.randint(0, 30, 9)
        taken[:] = x[chosen]
        yield taken, y[chosen]


callbacks = [Kills(), *([keras.callbacks.BackupAndRestore(folder / "backup")] if kind == "backup" else [])]
data = {"x": pieces(), "steps_per_epoch": 4} if kind == "generator" else {"x": x, "y": y, "batch_size": 9}
history = model.fit(**data, epochs=4, verbose=0, validation_data=(x[:7], y[:7]), callbacks=callbacks)
found = {
    "history": history.history,
    "epochs": history.epoch,
    "weights": [weight.tolist() for weight in model.get_weights()],
    "optimizer": [np.asarray(v).tolist() for v in model.optimizer.variables],
    "kept": int((folder / "backup").exists()),
}
print("FOUND " + json.dumps(found), flush=True)
