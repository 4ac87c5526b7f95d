"""`fit` and a function in two islands, and plain Keras on each island's rows, with means taken by hand."""

import keras
import numpy as np
import tensorflow as tf

import parallax.keras

ROWS, BATCH, EPOCHS, EVERY, ISLANDS = 52, 16, 3, 3, 2
draw = np.random.RandomState(0)
X, Y = draw.rand(ROWS, 5).astype("f"), draw.rand(ROWS, 1).astype("f")


def build():
    keras.utils.set_random_seed(3)
    inputs = keras.Input((5,))
    hidden = keras.layers.Dense(6, "tanh")(inputs)
    hidden = keras.layers.BatchNormalization(momentum=0.5)(hidden)
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    model.compile(keras.optimizers.Adam(0.01, epsilon=1e-3), "mse", metrics=["mae"])
    return model


def rows_of_island(rows, island):
    return slice(rows * island // ISLANDS, rows * (island + 1) // ISLANDS)


def meet(models):
    means = [np.mean(values, 0) for values in zip(*(model.get_weights() for model in models), strict=True)]
    for model in models:
        model.set_weights(means)


def by_hand():
    """The weights of models that train on their island's rows; the means of their losses by epoch."""
    models, losses, updates = [build() for _ in range(ISLANDS)], [], 0
    for _ in range(EPOCHS):
        summed = 0.0
        for first in range(0, ROWS, BATCH):
            x, y = X[first : first + BATCH], Y[first : first + BATCH]
            for island, model in enumerate(models):
                rows = rows_of_island(len(x), island)
                loss = model.train_on_batch(x[rows], y[rows])
                model.reset_metrics()
                summed += float(np.ravel(loss)[0]) * len(x[rows])
            updates += 1
            if updates % EVERY == 0:
                meet(models)
        losses.append(summed / ROWS)
    if updates % EVERY:
        meet(models)
    return models[0].get_weights(), losses


def distance(found, wanted):
    return max(float(np.linalg.norm(a - b) / (np.linalg.norm(b) + 1e-30)) for a, b in zip(found, wanted, strict=True))


def main():
    islands = parallax.Islands(count=ISLANDS, every=EVERY, outer_rate=1.0, outer_momentum=0.0)
    config = parallax.Config(islands=islands, seed=1)
    weights, losses = by_hand()
    model = build()
    parallax.keras.use(parallax_config=config)
    history = model.fit(X, Y, batch_size=BATCH, epochs=EPOCHS, shuffle=False, verbose=0)
    print(f"differs {distance(model.get_weights(), weights)} {distance(history.history['loss'], losses)}")
    plain = keras.models.clone_model(model)
    plain.set_weights(model.get_weights())
    print(f"predicts {distance([model.predict(X, verbose=0)], [np.asarray(plain(X))])}")
    evaluated = model.evaluate(X, Y, verbose=0, return_dict=True)["loss"]
    print(f"evaluates {distance([evaluated], [np.mean((np.asarray(plain(X)) - Y) ** 2)])}")

    w = tf.Variable(np.ones((5, 1), "f"))

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(x @ w - y))
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss, x @ w

    run = parallax.function(step, parallax_config=config)
    means, rows = [], []
    for _ in range(4):
        loss, outputs = run(X[:BATCH], Y[:BATCH])
        means.append(float(loss))
        rows.append(np.asarray(outputs).shape)
    print(f"steps {rows[0]} {means[0] > means[3] > 0}")
    print(f"refused {refusal(run)}")


def refusal(run):
    try:
        run(X[:1], Y[:1])
    except Exception as error:
        return str(error).splitlines()[0]
    return ""


if __name__ == "__main__":
    main()
