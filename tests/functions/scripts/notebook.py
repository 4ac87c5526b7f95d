"""What a notebook does: a function of its own makes a model and trains it, by a job and then in this process."""

import keras
import numpy as np

import parallax.keras


def make():
    keras.utils.set_random_seed(7)
    ids = keras.Input([3], dtype="int64")
    rows = keras.layers.Flatten()(keras.layers.Embedding(50, 4)(ids))
    model = keras.Model(ids, keras.layers.Dense(1)(rows))
    model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
    numbers = np.random.default_rng(3)
    x, y = numbers.integers(0, 20, [30, 3]), numbers.normal(size=[30, 1]).astype(np.float32)
    return model, model.fit(x, y, epochs=2, batch_size=8, shuffle=False, verbose=0)


model, history = parallax.keras.call(make)
plain, expected = make()
for name, values in expected.history.items():
    np.testing.assert_allclose(history.history[name], values, rtol=1e-5)
for found, weights in zip(model.get_weights(), plain.get_weights(), strict=True):
    np.testing.assert_allclose(found, weights, rtol=1e-5, atol=1e-6)
print("equal")
