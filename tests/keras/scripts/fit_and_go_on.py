"""A script as users write it, with what it came to printed as JSON; plain Keras runs it as it stands, too."""

import json
import os
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import parallax.keras

layers = keras.layers
plain = "plain" in sys.argv
batch = 9 if "uneven" in sys.argv else 8  # of 32 rows
folder = Path(sys.argv[1])
if not plain:
    parallax.keras.use()

keras.utils.set_random_seed(4)
random = np.random.RandomState(0)
ids, x = random.randint(0, 40, (32, 3)).astype("int32"), random.rand(32, 4).astype("float32")
y = random.randint(0, 2, (32, 1)).astype("float32")
features = {"ids": ids, "x": x}

inputs = {"ids": keras.Input((3,), dtype="int32", name="ids"), "x": keras.Input((4,), name="x")}
rows = layers.Flatten()(layers.Embedding(40, 4)(inputs["ids"]))
hidden = layers.Dense(6, "tanh")(layers.Concatenate()([rows, inputs["x"]]))
model = keras.Model(inputs, layers.Dense(1, "sigmoid")(hidden))
model.compile(
    keras.optimizers.Adam(0.02), "binary_crossentropy", metrics=["accuracy", keras.metrics.AUC(num_thresholds=9)]
)


class Meddles(keras.callbacks.Callback):
    """Reads, writes, evaluates and predicts; it runs once, where the script's files are written."""

    def __init__(self):
        super().__init__()
        self.seen, self.processes = [], []

    def on_train_batch_end(self, batch, logs=None):
        if batch == 1:
            kernel = self.model.layers[-1].kernel
            kernel.assign(0.9 * kernel)

    def on_epoch_end(self, epoch, logs=None):
        self.processes.append(os.getpid())
        np.random.rand()  # what follows draws after it, on every worker
        with (folder / "epochs.txt").open("a") as file:
            file.write(f"{epoch}\n")
        self.seen.append(self.model.evaluate(features, y, batch_size=16, verbose=0))
        self.seen.append(float(self.model.predict(features, verbose=0).sum()))
        self.seen.append(float(sum(np.abs(w).sum() for w in self.model.get_weights())))


def fit(*arguments, **options):
    return model.fit(*arguments, **options)


meddles = Meddles()
reduce = keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=1.0)
best = keras.callbacks.ModelCheckpoint(
    folder / "best.weights.h5", "val_loss", save_best_only=True, save_weights_only=True
)
early = keras.callbacks.EarlyStopping("loss", min_delta=10.0, patience=3, restore_best_weights=True)
first = fit(
    features,
    y,
    batch_size=batch,
    epochs=7,
    verbose=0,
    validation_data=(features, y),
    callbacks=[meddles, reduce, best, early],
)
between = model.evaluate(features, y, batch_size=16, verbose=0)
order = np.random.permutation(32)
labels = (model.predict(features, verbose=0) > 0.5).astype("float32")  # workers must come to the same ones
data = tf.data.Dataset.from_tensor_slices(({k: v[order] for k, v in features.items()}, labels[order]))
data = data.shuffle(40).batch(8).repeat()
second = fit(data, epochs=2, steps_per_epoch=3, verbose=0)
model.save(folder / "model.keras")
again = keras.models.load_model(folder / "model.keras")

found = {
    "first": first.history,
    "second": second.history,
    "between": between,
    "labels": labels.tolist(),
    "after": again.evaluate(features, y, batch_size=16, verbose=0),
    "seen": meddles.seen,
    "drawn": np.random.rand(),
    "stopped": early.stopped_epoch,
    "rate": float(model.optimizer.learning_rate),
    "weights": [np.asarray(v).tolist() for v in model.variables],
    "optimizer": [np.asarray(v).tolist() for v in model.optimizer.variables],
    "epochs": (folder / "epochs.txt").read_text().split(),
    "best": sorted(file.name for file in folder.iterdir()),
    "processes": len(set(meddles.processes)),
}
print("FOUND " + json.dumps(found), flush=True)
