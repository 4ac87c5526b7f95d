"""Fits that follow each other: workers are kept, or made anew, and what is trained is what one process trains."""

import json
import os
import signal
import sys
import time

import keras
import numpy as np
from worker_processes import find_workers

import parallax
import parallax.keras

kind = sys.argv[1]
if kind != "plain":
    parallax.keras.use(parallax_config=parallax.Config(workers=2))
keras.utils.set_random_seed(3)
ids = np.random.default_rng(1).integers(0, 50, [70, 4])
labels = (ids % 2).mean(1, keepdims=True).astype("float32")
histories = []


def made(width):
    layers = [
        keras.layers.Embedding(50, width),
        keras.layers.Flatten(),
        keras.layers.Dropout(0.0),
        keras.layers.Dense(1),
    ]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    return model


def fit(model, **more):
    """Fits, and says which workers are there then."""
    history = model.fit(ids, labels, batch_size=16, epochs=2, verbose=0, shuffle=False, **more).history
    histories.append(history)
    print("WORKERS " + json.dumps(find_workers()))


first, second = made(4), made(3)
fit(first)
fit(first)
first.layers[0].trainable = False
first.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
fit(first)  # other steps
fit(second, validation_data=(ids[:9], labels[:9]))
fit(first)
if kind == "killed between":
    os.kill(find_workers()[1], signal.SIGKILL)
if kind == "ended between":
    os.kill(find_workers()[0], signal.SIGKILL)
    while find_workers():
        time.sleep(0.05)
if kind == "killed within":
    kill = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: os.kill(find_workers()[1], signal.SIGKILL)
    )
    weights = second.get_weights()
    try:
        second.fit(ids, labels, batch_size=16, verbose=0, shuffle=False, callbacks=[kill])
    except Exception as failed:
        print(f"FAILED {type(failed).__name__} {failed}")
    second.set_weights(weights)
if kind == "closed":
    parallax.keras.close()
    print("WORKERS " + json.dumps(find_workers()))
if kind == "other settings":
    parallax.keras.use(parallax_config=parallax.Config(workers=3))
fit(second, validation_data=(ids[:9], labels[:9]))
trained = [w.tolist() for model in (first, second) for w in model.get_weights()]
print("FOUND " + json.dumps({"histories": histories, "weights": trained}))
