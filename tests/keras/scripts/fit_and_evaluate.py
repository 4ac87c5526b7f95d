"""`evaluate` and `predict` after fits: KIND FOLDER. "plain" is for plain Keras.

"workers" has workers compute them whatever they save, "large" since the tables are too large for the script's process.
"""

import json
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import parallax
import parallax.keras
from parallax.keras import evaluation

KIND, folder = sys.argv[1], Path(sys.argv[2])
if KIND == "large":
    tables = parallax.TableConfig(traced_bytes=500, whole_bytes=1000, tables_dir=folder)
    parallax.keras.use(None, parallax.Config(tables=tables))
elif KIND == "workers":
    parallax.keras.use()
    evaluation._WORTH_S = -1e9
keras.utils.set_random_seed(2)
random = np.random.default_rng(1)
ids, x = random.integers(0, 60, [50, 3]), random.normal(size=[50, 4]).astype("float32")
y = {"size": random.normal(size=[50, 1]).astype("float32"), "kind": random.integers(0, 2, [50, 1])}
features = {"ids": ids, "x": x}


class Seen(keras.layers.Layer):
    """Sums its inputs where it is not trained."""

    def build(self, shape):
        self.seen = self.add_weight(name="seen", initializer="zeros", trainable=False)

    def call(self, x, training=None):
        if not training:
            self.seen.assign_add(keras.ops.sum(x))
        return x


seen = Seen(name="counted")
inputs = {"ids": keras.Input((3,), dtype="int32", name="ids"), "x": keras.Input((4,), name="x")}
rows = keras.layers.Flatten()(keras.layers.Embedding(60, 8, name="table")(inputs["ids"]))
hidden = keras.layers.BatchNormalization()(keras.layers.Concatenate()([rows, seen(inputs["x"])]))
heads = {"size": keras.layers.Dense(1)(hidden), "kind": keras.layers.Dense(1, "sigmoid")(hidden)}
model = keras.Model(inputs, heads)


class Largest(keras.metrics.Metric):
    """A metric that does not add up."""

    def __init__(self):
        super().__init__(name="largest")
        self.largest = self.add_weight(name="value", initializer="zeros")

    def update_state(self, expected, found, sample_weight=None):
        self.largest.assign(keras.ops.maximum(self.largest, keras.ops.max(found)))

    def result(self):
        return self.largest


metrics = {"size": ["mae", Largest()], "kind": ["accuracy", keras.metrics.AUC(num_thresholds=9)]}
losses = {"size": "mse", "kind": "binary_crossentropy"}
model.compile(keras.optimizers.SGD(0.05), losses, metrics=metrics)
data = tf.data.Dataset.from_tensor_slices((features, y)).batch(9)


def pieces():
    for first in range(0, 50, 8):
        part = slice(first, first + 8)
        yield {k: v[part] for k, v in features.items()}, {k: v[part] for k, v in y.items()}


def look():
    """What a script may look at between two fits; all of it."""
    weights = np.linspace(0, 1, 50)
    found = [
        model.evaluate(features, y, batch_size=8, verbose=0),
        model.evaluate(features, y, batch_size=7, verbose=0, sample_weight=weights, return_dict=True),
        model.evaluate(data, verbose=0, steps=3),
        model.evaluate(pieces(), steps=7, verbose=0),  # else Keras counts the end of a generator for a batch
        {metric.name: float(np.sum(metric.result())) for metric in model.metrics[:1]},
        [float(np.sum(variable)) for metric in model.metrics for variable in metric.variables],
        seen.seen.numpy(),
        model.predict(features, batch_size=8, verbose=0),
        model.predict(data, verbose=0, steps=2),
        model.predict(features, batch_size=50, verbose=0),  # one batch
        seen.seen.numpy(),
    ]
    return tf.nest.map_structure(lambda one: np.asarray(one).tolist(), found)


found = {"histories": [], "looks": []}
for _ in range(2):
    history = model.fit(features, y, batch_size=8, epochs=2, verbose=0, validation_data=data, shuffle=False)
    found["histories"].append(history.history)
    found["looks"].append(look())
if KIND != "large":
    model.compile("sgd", losses)  # no fit has trained it
    found["compiled anew"] = model.evaluate(features, y, batch_size=8, verbose=0)
print("FOUND " + json.dumps(found))
