"""A loop whose loss needs the global batch: batch statistics, in-batch negatives, and results of every kind.

python global_batch.py OUT     by all workers under `parallax run`: OUT has what the script saw
"""

import sys

import keras
import numpy as np
import tensorflow as tf

import parallax

RETURNS = {"loss": "mean", "correct": "sum", "length": "sum", "scores": "rows", "largest": "mean", "none": None}
RETURNS |= dict.fromkeys(("sorted", "masked", "unique", "pairs", "texts"), "rows")


def trained(wrap):
    """What a script sees that trains by `wrap(step)`; the last batch leaves a worker without examples."""
    keras.utils.set_random_seed(1)
    layers = keras.layers
    model = keras.Sequential([layers.Embedding(40, 4), layers.Flatten(), layers.BatchNormalization(), layers.Dense(3)])
    model.build((None, 5))
    optimizer = keras.optimizers.SGD(0.1)

    def step(ids):
        with tf.GradientTape() as tape:
            rows = model(ids, training=True)
            scores = rows @ tf.transpose(rows)
            labels = tf.range(tf.shape(rows)[0])
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores))
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        correct = tf.reduce_sum(tf.cast(tf.equal(tf.argmax(scores, 1, tf.int32), labels), tf.float32))
        length = tf.cast(tf.shape(ids)[0], tf.float32)
        others = {  # of other lengths than the batch, and of other layouts
            "sorted": tf.sort(rows[:, 0]),
            "masked": tf.boolean_mask(rows, ids[:, 0] % 2 == 0),
            "unique": tf.unique(tf.reshape(ids, [-1])).y,
            "pairs": tf.reshape(scores, [-1]),
            "texts": tf.strings.as_string(ids),
            "none": None,
        }
        largest = tf.reduce_max(rows)
        return {"loss": loss, "correct": correct, "length": length, "scores": rows, "largest": largest, **others}

    train = wrap(step)
    random, seen = np.random.default_rng(1), []
    for rows in (7, 8, 1):
        results = train(random.integers(0, 40, [rows, 5]).astype(np.int32))
        seen.append({name: np.asarray(value) for name, value in results.items() if value is not None})
    found = {f"{name} {n}": value for n, results in enumerate(seen) for name, value in results.items()}
    return found | {f"weight {n}": value.numpy() for n, value in enumerate(model.variables)}


if __name__ == "__main__":
    np.savez(
        sys.argv[1],
        **trained(lambda step: parallax.function(step, None, parallax.Config(layouts=True), returns=RETURNS)),
    )
