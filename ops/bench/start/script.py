"""A Keras script whose fits are timed: `script.py CASE`, by plain Keras or by `parallax run`.

Its last output line is `STARTED` and, for each fit, the seconds from its call to its first batch.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import keras
import numpy as np

import parallax.keras  # noqa: F401  # by `parallax run`, fit trains on workers
from ops.bench.start.cases import AGAIN, LINES, RECURRENT

_ROWS, _EXAMPLES, _BATCH = 1000, 1600, 64


def main(case: str) -> None:
    """Runs the fits of a case."""
    keras.utils.set_random_seed(1)
    started: list[float] = []
    if case == RECURRENT:
        _fit(_recurrent(), 40, started)
    else:
        models = [_small(16)] if case in (LINES, AGAIN) else [_small(width) for width in (8, 16, 32)]
        for model in models * (2 if case == AGAIN else 1):
            _fit(model, 8, started)
    sys.stdout.write(f"STARTED {json.dumps(started)}\n")  # in one piece: workers may still print


def _small(width: int) -> Any:
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Embedding(_ROWS, 32),
            layers.GlobalAveragePooling1D(),
            layers.Dense(width, activation="relu"),
            layers.BatchNormalization(),
            layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile("adam", "binary_crossentropy", metrics=["accuracy", "AUC"])
    return model


def _recurrent() -> Any:
    layers, words = keras.layers, keras.Input((None,), dtype="int32")
    hidden = layers.Embedding(_ROWS, 32)(words)
    hidden = layers.Bidirectional(layers.LSTM(32, return_sequences=True))(hidden)
    hidden = layers.Bidirectional(layers.LSTM(32))(hidden)
    model = keras.Model(words, layers.Dense(1, activation="sigmoid")(hidden))
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    return model


def _fit(model: Any, length: int, started: list[float]) -> None:
    ids = np.random.default_rng(1).integers(0, _ROWS, [_EXAMPLES, length]).astype(np.int32)
    labels = (ids % 2).mean(axis=1).round().astype(np.float32)
    began_s = time.monotonic()
    first: list[float] = []

    def note(batch: int, logs: object) -> None:
        if not first:
            first.append(time.monotonic() - began_s)

    noting = keras.callbacks.LambdaCallback(on_train_batch_begin=note)
    model.fit(ids, labels, batch_size=_BATCH, epochs=2, validation_split=0.2, verbose=0, callbacks=[noting])
    started.extend(first)


if __name__ == "__main__":
    main(sys.argv[1])
