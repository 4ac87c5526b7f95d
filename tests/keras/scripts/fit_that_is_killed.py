"""A fit with a backup, in whose third epoch a worker is killed once: FOLDER VICTIM [plain], for plain Keras."""

import json
import os
import signal
import sys
from pathlib import Path

import keras
import numpy as np

import parallax.keras

if "plain" not in sys.argv:
    parallax.keras.use()
folder = Path(sys.argv[1])
victim = folder / f"process-{sys.argv[2]}"
(folder / f"process-{os.environ.get('OMPI_COMM_WORLD_RANK', '0')}").write_text(str(os.getpid()), encoding="utf-8")
keras.utils.set_random_seed(4)
random = np.random.RandomState(0)
x, y = random.randint(0, 40, (30, 3)).astype("int32"), random.rand(30, 1).astype("float32")
ids = keras.Input((3,), dtype="int32")
model = keras.Model(ids, keras.layers.Dense(1)(keras.layers.Flatten()(keras.layers.Embedding(40, 4)(ids))))
model.compile(keras.optimizers.Adam(0.02), "mse", metrics=["mae"])


class Kills(keras.callbacks.Callback):
    """Kills the victim in the middle of epoch 2, of the first run alone."""

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if (self.epoch, batch) == (2, 1) and not (folder / "killed").exists():
            (folder / "killed").touch()
            os.kill(int(victim.read_text(encoding="utf-8")), signal.SIGKILL)


callbacks = [keras.callbacks.BackupAndRestore(folder / "backup"), Kills()]
history = model.fit(x, y, batch_size=9, epochs=4, verbose=0, callbacks=callbacks)
found = {
    "history": history.history,
    "epochs": history.epoch,
    "weights": [weight.tolist() for weight in model.get_weights()],
    "optimizer": [np.asarray(v).tolist() for v in model.optimizer.variables],
    "kept": int((folder / "backup").exists()),
}
print("FOUND " + json.dumps(found), flush=True)
