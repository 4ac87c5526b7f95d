"""A fit by workers on other hosts, which waits in its second epoch: RESOURCE FOLDER [plain|elastic] [mapped].

"plain" is for plain Keras, "elastic" for a fit that goes on with one host where the other is lost. With "mapped" the
input is a dataset that maps a function over its elements, else it is arrays.
"""

import json
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import parallax
import parallax.keras
from parallax.entry import background_job
from parallax.runtime.supervisor.limits import Limits

resource, folder, is_plain = sys.argv[1], Path(sys.argv[2]), "plain" in sys.argv
LIMITS = Limits(silent_s=5.0, word_s=1.0, unheard_s=12.0)


def launch_within_limits(launch, job, *arguments, **more):
    return launch(replace(job, limits=LIMITS), *arguments, **more)


if not is_plain:
    if "elastic" in sys.argv:
        background_job.launch = partial(launch_within_limits, background_job.launch)
    elastic = {"min_hosts": 1, "no_spare": True} if "elastic" in sys.argv else {}
    restarts = parallax.RestartConfig(max_restarts=1, **elastic)
    parallax.keras.use(resource, parallax.Config(restart=restarts))
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


data = {"x": x, "y": y, "batch_size": 8}
if "mapped" in sys.argv:
    elements = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(70, seed=1)
    turn = tf.autograph.experimental.do_not_convert(lambda ids, value: (39 - ids, 2 * value))  # leaves no files
    data = {"x": elements.map(turn).batch(8)}
history = model.fit(**data, epochs=3, verbose=0, callbacks=[Waits()])
weights = [weight.tolist() for weight in model.get_weights()]
print("FOUND " + json.dumps({"history": history.history, "weights": weights}), flush=True)
