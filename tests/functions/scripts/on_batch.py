"""A loop of train_on_batch, after a fit with FIT: python on_batch.py OUTPUT FIT."""

import sys

import keras
import numpy as np

from tests.functions.scripts.custom_loop import batches, model


def trained(fits, output):
    """What a script sees of a training: logs, evaluations, predictions, weights."""
    net = model()
    net.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
    given, seen = list(batches()), {}
    if fits:
        x, y = given[0]
        history = net.fit(x, y, epochs=2, batch_size=4, shuffle=False, verbose=0)
        seen["history"] = np.asarray(history.history["loss"])
    for number, (x, y) in enumerate(given):
        seen[f"logs {number}"] = np.asarray(net.train_on_batch(x, y))
        if number == 7:
            seen["evaluated"] = np.asarray(net.evaluate(x, y, verbose=0))
            seen["tested"] = np.asarray(net.test_on_batch(x, y))
            seen["predicted"] = net.predict(x, verbose=0)
            net.optimizer.learning_rate = 0.05
    net.save_weights(output)
    seen.update({f"weight {number}": value for number, value in enumerate(net.get_weights())})
    return seen


if __name__ == "__main__":
    import parallax.keras

    parallax.keras.use()
    found = trained(sys.argv[2:] == ["FIT"], "trained.weights.h5")
    np.savez(sys.argv[1], **found)
