"""Two fits of a model whose tables no process makes whole, with what came of them printed as JSON."""

import json
import sys

import keras
import numpy as np
import tensorflow as tf

import parallax.keras
from parallax import Config, TableConfig
from parallax.base.errors import SessionError

ROWS, folder = 101, sys.argv[1]
plain = "plain" in sys.argv
if not plain:
    parallax.keras.use(None, Config(tables=TableConfig(traced_bytes=2000, whole_bytes=2000, tables_dir=folder)))

keras.utils.set_random_seed(4)
random = np.random.RandomState(0)
ids = random.randint(0, ROWS, (48, 3)).astype("int32")
y = random.rand(48, 1).astype("float32")
table = keras.layers.Embedding(ROWS, 8, name="table")
model = keras.Sequential([keras.Input((3,), dtype="int32"), table, keras.layers.Flatten(), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adagrad(0.1), "mse", metrics=["mae"])


def fit(**options):
    return model.fit(ids, y, batch_size=12, verbose=0, **options)


class Saves(keras.callbacks.Callback):
    """Keeps the model after each epoch."""

    def on_epoch_end(self, epoch, logs=None):
        if plain:
            found[f"epoch {epoch}"] = table.embeddings.numpy().tolist()
        else:
            parallax.keras.save_checkpoint(self.model, f"{folder}/epochs", epoch)


def variable(name):
    """All of a large variable: of the checkpoint, where only that has it."""
    if plain:
        large = {"table/embeddings": table.embeddings, "accumulator": model.optimizer.variables[2]}
        return large[name].numpy()
    reader = tf.train.load_checkpoint(folder)
    [key] = [key for key in reader.get_variable_to_shape_map() if name in key and ("adagrad" in key) == ("acc" in name)]
    return reader.get_tensor(key)


def refusal():
    try:
        model.get_weights()
    except SessionError as error:
        return str(error)
    return ""


found = {}
found["first"] = fit(epochs=2, validation_data=(ids, y), callbacks=[Saves()]).history
for epoch in () if plain else range(2):
    reader = tf.train.load_checkpoint(f"{folder}/epochs/model.ckpt-{epoch}")
    found[f"epoch {epoch}"] = reader.get_tensor("sequential/table/embeddings").tolist()
found["rows"] = (
    variable("table/embeddings")[40:44] if plain else parallax.keras.rows(table.embeddings, 40, 4)
).tolist()
told = refusal()
found["second"] = fit(epochs=1).history
found["dense"] = [w.tolist() for w in model.layers[-1].get_weights()]
found["table"] = variable("table/embeddings").tolist()
found["slot"] = variable("table/embeddings/adagrad/accumulator" if not plain else "accumulator").tolist()
print("FOUND " + json.dumps(found), flush=True)
if not plain:
    print("TOLD " + told, flush=True)
