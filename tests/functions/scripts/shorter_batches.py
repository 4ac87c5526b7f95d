"""A loop whose examples interact: WORKERS OUT.

Of some batches some workers have as many rows as of a full one. Another argument has other lengths, and is returned.
"""

import sys

import numpy as np
import tensorflow as tf

import parallax


def trained(wrap, size):
    """The losses and the weights of a step that is made by `wrap`, for so many workers."""
    random = np.random.default_rng(3)
    weights = tf.Variable(random.normal(size=[4, 4]).astype(np.float32))

    @wrap
    def step(x, others):
        with tf.GradientTape() as tape:
            rows = tf.tanh(x @ weights)
            near = rows @ tf.transpose(rows) - 1e9 * tf.eye(tf.shape(rows)[0])
            loss = tf.reduce_mean(tf.reduce_logsumexp(near, 1)) - 0.1 * tf.reduce_mean((others @ weights) ** 2)
        weights.assign_sub(0.1 * tape.gradient(loss, weights))
        return loss, 2 * others

    lengths = [4 * size - 1, 4 * size - 2, 4 * size - 1, 2]  # the first is that of a full one
    losses, returned = [], []
    for number, rows in enumerate(lengths):
        x, others = (random.normal(size=[length, 4]).astype(np.float32) for length in (rows, 1 + number))
        loss, twice = step(x, others)
        losses.append(float(loss))
        returned.append(np.asarray(twice))
    return {"losses": np.array(losses), "returned": np.concatenate(returned), "weights": weights.numpy()}


if __name__ == "__main__":
    np.savez(sys.argv[2], **trained(parallax.function, int(sys.argv[1])))
