"""A custom loop over a Keras model: python custom_loop.py OPTIMIZER OUTPUT trains it by parallax.function."""

import sys
import tempfile

import keras
import numpy as np
import tensorflow as tf

import parallax
from tests.functions.scripts.micro_loop import read_summaries

BATCHES, ROWS, STEPS = 3, 8, 20
OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "tf.train": lambda: tf.compat.v1.train.AdagradOptimizer(0.1),
}


def model():
    keras.utils.set_random_seed(7)
    ids = keras.Input([3], dtype="int64")
    x = keras.layers.Embedding(50, 4, name="emb")(ids)
    x = keras.layers.Dense(5, activation="tanh")(keras.layers.Flatten()(x))
    return keras.Model(ids, keras.layers.Dense(1)(x))


def batches(rows=ROWS):
    numbers = np.random.default_rng(3)
    for number in range(STEPS):
        length = rows - (number % 5 == 4) * 2
        yield numbers.integers(0, 20, [length, 3]), numbers.normal(size=[length, 1]).astype(np.float32)


def save(net, rule):
    """Writes a checkpoint, and reads it again."""
    checkpoint = tf.train.Checkpoint(model=net, optimizer=rule)
    path = tf.train.CheckpointManager(checkpoint, "saved", max_to_keep=1).save()
    table = net.layers[1].embeddings.numpy()
    found = [tf.train.load_variable(path, key) for key, shape in tf.train.list_variables(path) if shape == [50, 4]]
    assert any(np.array_equal(one, table) for one in found)


def write_oddly(table, number):
    """Writes rows of a table by ops that few scripts use."""
    rows = tf.IndexedSlices(tf.fill([2, 4], 0.5), tf.constant([1, 2]))
    if number == 8:
        table.scatter_mul(rows)
    if number == 10:
        table[2:4].assign(tf.ones([2, 4]))
    if number == 12:
        tf.compat.v1.scatter_update(table, [5, 6], tf.zeros([2, 4]))
    if number == 13:
        tf.raw_ops.ResourceScatterNdMax(ref=table.handle, indices=[[3], [4]], updates=tf.fill([2, 4], 0.1))


def trained(optimizer, distributed):
    """What a script sees of a training: losses, predictions, a metric, variables."""
    net, rule = model(), OPTIMIZERS[optimizer]()
    folder = tempfile.mkdtemp()
    writer = tf.summary.create_file_writer(folder)
    metric, mean, steps = keras.metrics.MeanAbsoluteError(), keras.metrics.Mean(), keras.metrics.Sum(dtype="int32")

    class Trainer:
        @distributed
        def step(self, x, y, factor=0.5):
            return self.computed(x, y, tf.cast(factor, tf.float32))

        def computed(self, x, y, factor):
            return step(x, y, factor)

    def step(x, y, factor):
        with tf.GradientTape() as tape:
            predicted = net(x, training=True)
            loss = factor * tf.reduce_mean(tf.square(predicted - y))
        variables = net.trainable_variables
        if optimizer == "tf.train":
            variables = [variable.value for variable in variables]
        rule.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        metric.update_state(y, predicted)
        mean.update_state(loss)
        steps.update_state(1)
        squares = tf.square(predicted - y)
        with writer.as_default(step=rule.iterations if optimizer != "tf.train" else 0):
            tf.summary.histogram("predicted", predicted, buckets=5)
        return {"loss": loss, "root": tf.sqrt(tf.reduce_mean(squares)), "sum": tf.reduce_sum(squares), "of": predicted}

    trainer, evaluate, seen = Trainer(), tf.function(lambda x: net(x)), {}
    for number, (x, y) in enumerate(batches()):
        out = trainer.step(x, y=tf.constant(y)) if number % 2 else trainer.step(x, tf.constant(y), factor=0.5)
        seen.update({f"{name} {number}": value.numpy() for name, value in out.items()})
        if number == 7:
            seen["metric"] = float(metric.result())
            metric.reset_state()
            net.layers[-1].bias.assign_add([0.25])
            seen["evaluated"] = evaluate(tf.constant(x)).numpy()
        if number == 11 and hasattr(Trainer.step, "worker_id"):
            save(net, rule)
        write_oddly(net.layers[1].embeddings.value, number)
    writer.close()
    seen.update(read_summaries(folder))
    seen["metric at the end"] = float(metric.result())
    seen["mean of losses"], seen["steps"] = float(mean.result()), int(steps.result())
    seen.update({f"weight {number}": value for number, value in enumerate(net.get_weights())})
    return seen


if __name__ == "__main__":
    name, output = sys.argv[1:]
    found = trained(name, parallax.function)
    np.savez(output, **found)
