"""A custom loop whose steps are cut into micro-batches: python micro_loop.py OUTPUT trains it by parallax.function."""

import sys
import tempfile
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import parallax

BATCHES = (8, 7, 8, 3, 1, 8)


def read_summaries(folder):
    """The tensors that writers have written to a folder, by tag and step."""
    events = (event for path in Path(folder).iterdir() for event in tf.compat.v1.train.summary_iterator(str(path)))
    return {f"{one.tag} {event.step}": tf.make_ndarray(one.tensor) for event in events for one in event.summary.value}


def trained(distributed):
    """What a script sees of a training: results of all kinds, metrics, a count of steps, and variables."""
    keras.utils.set_random_seed(7)
    emb, dense, rule = keras.layers.Embedding(50, 4), keras.layers.Dense(1), keras.optimizers.Adam(0.05)
    emb.build()
    dense.build([None, 12])
    error, mean = keras.metrics.MeanAbsoluteError(), keras.metrics.Mean()
    steps, seen_examples = keras.metrics.Sum(dtype="int32"), tf.Variable(0, trainable=False)
    variables = [*emb.trainable_variables, *dense.trainable_variables]
    folder = tempfile.mkdtemp()
    writer = tf.summary.create_file_writer(folder)

    def step(x, y, factor):
        with tf.GradientTape() as tape:
            rows = emb(x)
            predicted = dense(tf.reshape(rows, [-1, 12]))
            squares = tf.square(predicted - y)
            penalty = 0.01 * tf.nn.l2_loss(dense.kernel)
            loss = factor * tf.reduce_sum(squares) + penalty
        gradients = tape.gradient(loss, variables)
        gradients[1:], norm = tf.clip_by_global_norm(gradients[1:], 0.5)
        rule.apply_gradients(zip(gradients, variables, strict=True))
        error.update_state(y, predicted)
        mean.update_state(loss)
        steps.update_state(1)
        seen_examples.assign_add(tf.shape(x)[0])
        right = tf.reduce_sum(tf.cast(tf.abs(predicted - y) < 1.0, tf.int32))
        count = tf.cast(rule.iterations, tf.int64)
        with writer.as_default(step=count), tf.summary.record_if(lambda: count % 2 == 0):
            tf.summary.scalar("squares", tf.reduce_sum(squares))
        return {
            **{"loss": loss, "penalty": penalty, "mean": tf.reduce_mean(squares), "of": predicted, "right": right},
            **{"columns": tf.reduce_mean(rows, [0, 1]), "norm": norm, "bias": tf.identity(dense.bias)},
        }

    made, found, numbers = distributed(step), {}, np.random.default_rng(3)
    for number, rows in enumerate(BATCHES):
        x, y = numbers.integers(0, 20, [rows, 3]), numbers.normal(size=[rows, 1]).astype(np.float32)
        out = made(x, y, tf.constant(0.1))
        found.update({f"{name} {number}": value.numpy() for name, value in out.items()})
    summaries = read_summaries(folder)
    assert len(summaries) == len(BATCHES) // 2
    found.update(summaries)
    found["metrics"] = np.array([float(one.result()) for one in (error, mean, steps)])
    found["examples"] = seen_examples.numpy()
    found.update({f"weight {number}": one.numpy() for number, one in enumerate(variables)})
    return found


if __name__ == "__main__":
    np.savez(sys.argv[1], **trained(parallax.function))
