"""A model of tf_keras, which `python legacy_fit.py` fits by a job; the launching process keeps what came of it."""

import numpy as np
import tf_keras


def fitted():
    """History, weights and the optimizer's variables; the last batch of validation has one row."""
    tf_keras.utils.set_random_seed(7)
    ids = tf_keras.Input([3], dtype="int64")
    x = tf_keras.layers.Flatten()(tf_keras.layers.Embedding(50, 4, name="emb")(ids))
    model = tf_keras.Model(ids, tf_keras.layers.Dense(1)(tf_keras.layers.Dense(5, activation="tanh")(x)))
    model.compile(tf_keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
    numbers = np.random.default_rng(3)
    x, y = numbers.integers(0, 20, [30, 3]), numbers.normal(size=[30, 1]).astype(np.float32)
    plateau = tf_keras.callbacks.ReduceLROnPlateau(monitor="loss", min_delta=10, patience=1)
    options = {"validation_data": (x[:9], y[:9]), "callbacks": [plateau], "shuffle": False, "verbose": 0}
    history = model.fit(x, y, epochs=3, batch_size=8, **options)
    seen = {name: np.asarray(values) for name, values in history.history.items()}
    seen.update({f"weight {number}": value for number, value in enumerate(model.get_weights())})
    seen.update({f"optimizer {number}": v.numpy() for number, v in enumerate(model.optimizer.variables)})
    return seen


if __name__ == "__main__":
    import parallax.keras

    before = tf_keras.Sequential([tf_keras.layers.Dense(1)])
    before.compile("sgd", "mse")
    before.fit(np.ones([4, 2]), np.ones([4, 1]), verbose=0)  # trained by each process for itself: no call of a job
    parallax.keras.use()
    np.savez("fitted.npz", **fitted())
