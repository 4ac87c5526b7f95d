"""Trains a Keras model by `fit` and batch by batch, in two stages if a resource file is given; shows what comes of it.

staged_fit.py none|RESOURCE_FILE
"""

import json
import sys

import keras
import numpy as np

import parallax
import parallax.keras


def main():
    keras.utils.set_random_seed(3)
    inputs = values = keras.Input([64])
    for _ in range(4):
        values = keras.layers.Dense(256, "relu")(values)
    model = keras.Model(inputs, keras.layers.Dense(3)(values))
    if sys.argv[1] != "none":
        config = parallax.Config(stages=2, micro_batches=2, seed=1)
        parallax.keras.use(sys.argv[1], parallax_config=config)
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse", metrics=["mae"])
    draw = np.random.default_rng(0)
    x, y = draw.standard_normal([40, 64]).astype("float32"), draw.standard_normal([40, 3]).astype("float32")
    history = model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0).history
    losses = [float(model.train_on_batch(x[first : first + 10], y[first : first + 10])[0]) for first in (0, 10, 20)]
    found = [losses, history["loss"], history["mae"], *(float(np.square(one).sum()) for one in model.get_weights())]
    print("FOUND", json.dumps([found, model.predict(x, verbose=0).tolist()]))


if __name__ == "__main__":
    main()
