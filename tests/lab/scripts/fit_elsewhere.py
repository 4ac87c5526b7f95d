"""A fit by workers on other hosts, which waits in its second epoch: RESOURCE FOLDER [plain], for plain Keras."""

import json
import sys
import time
from pathlib import Path

import keras
import numpy as np

import parallax
import parallax.keras

resource, folder, is_plain = sys.argv[1], Path(sys.argv[2]), "plain" in sys.argv
if not is_plain:
    parallax.keras.use(resource, parallax.Config(restart=parallax.RestartConfig(max_restarts=1)))
print("BEFORE", flush=True)
keras.utils.set_random_seed(4)
random = np.random.RandomState(0)
x, y = random.randint(0, 40, (70, 3)).astype("int32"), random.rand(70, 1).astype("float32")
layers = [keras.layers.Embedding(40, 4), keras.layers.Flatten(), keras.layers.Dense(1)]
model = keras.Sequential(layers)
model.compile(keras.optimizers.Adam(0.02), "mse", metrics=["mae"])


class Waits(keras.callbacks.Callback):
    """Waits once for a file, in the middle of an epoch."""

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if (self.epoch, batch) == (1, 2) and not is_plain:
            print("WAITS", flush=True)
            while not (folder / "go").exists():
                time.sleep(0.05)


history = model.fit(x, y, batch_size=8, epochs=3, verbose=0, callbacks=[Waits()])
weights = [weight.tolist() for weight in model.get_weights()]
print("FOUND " + json.dumps({"history": history.history, "weights": weights}), flush=True)
