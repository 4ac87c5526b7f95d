"""Normalizes each worker's rows by their own statistics, with shares of 5 and 3 rows; compares with one process."""

import numpy as np
import tensorflow.compat.v1 as tf

import parallax

SHARES, STEPS = (5, 3), 5


def draw_batch(step):
    return np.random.RandomState(step).randn(sum(SHARES), 4, 4, 3).astype(np.float32)


def train_on(shares):
    """A graph that normalizes parts of its batch, each by itself, or all of it; its variables."""
    values = tf.placeholder(tf.float32, [None, 4, 4, 3], name="x")
    kernel = tf.get_variable("kernel", initializer=0.3 * np.random.RandomState(0).randn(3, 3, 3, 3).astype(np.float32))
    scale = tf.get_variable("scale", [3], initializer=tf.ones_initializer())
    offset = tf.get_variable("offset", [3], initializer=tf.zeros_initializer())
    moving = tf.get_variable("moving", [3], trainable=False, initializer=tf.zeros_initializer())
    parts = tf.split(values, shares) if shares else [values]
    found = [tf.nn.fused_batch_norm(tf.nn.conv2d(part, kernel, 1, "SAME"), scale, offset) for part in parts]
    mean = sum(rows * one[1] for rows, one in zip(shares or [1], found, strict=True)) / sum(shares or [1])
    errors = tf.square(tf.tanh(tf.concat([one[0] for one in found], 0)) - 0.3 * values)
    with tf.control_dependencies([moving.assign(0.9 * moving + 0.1 * mean)]):
        tf.train.MomentumOptimizer(0.01, 0.9).minimize(tf.reduce_mean(tf.reduce_sum(errors, [1, 2, 3])), name="train")
    return [kernel, scale, offset, moving]


def main():
    graph, alone = tf.Graph(), tf.Graph()
    with graph.as_default():
        names = [variable.name for variable in train_on(None)]
    config = parallax.Config(batch_norm="own", seed=1)
    session, _, worker, _ = parallax.parallel_run(graph, parallax_config=config)
    begin = sum(SHARES[:worker])
    with session:
        for step in range(STEPS):
            session.run("train", {"x:0": [draw_batch(step)[begin : begin + SHARES[worker]]]})
        found = [session.run(name)[0] for name in names]
    with alone.as_default(), tf.Session() as plain:
        variables = train_on(SHARES)
        plain.run(tf.global_variables_initializer())
        for step in range(STEPS):
            plain.run("train", {"x:0": draw_batch(step)})
        wanted = plain.run(variables)
    print("differs", max(float(np.abs(one - other).max()) for one, other in zip(found, wanted, strict=True)))


if __name__ == "__main__":
    main()
