"""Batches whose parts have different lengths: two means, graphs and their nodes, two views of one label."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from parallax.base.errors import SessionError
from tests.keras.here import difference, fit_plainly, outcome
from tests.keras.two_here import fit_by

layers, ops = keras.layers, keras.ops
RANDOM = np.random.RandomState(1)
X = RANDOM.rand(20, 4).astype("float32")
Y = RANDOM.rand(20, 1).astype("float32")
MORE = RANDOM.rand(52, 4).astype("float32")
GRAPHS = np.arange(20) // 4


def check(make, sizes=(2, 3)):
    expected = outcome(fit_plainly, make)
    for size in sizes:
        here = outcome(lambda *args, size=size, **options: fit_by(size, *args, **options), make)
        parts = {name: difference(here[name], expected[name]) for name in expected}
        assert max(parts.values()) <= 1e-5, (size, parts, here["found"], expected["found"])


class Model(keras.Model):
    """Trains by a loss of all of its batch."""

    def __init__(self, loss):
        super().__init__()
        self.dense, self.of_batch = layers.Dense(1), loss
        self.dense.build((None, 4))

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self.of_batch(self.dense, data)
        variables = self.dense.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {"loss": loss}


def batches(x, length):
    return tf.data.Dataset.from_tensor_slices(x).batch(length)


def two_means(dense, data):
    (x, y), more = data
    return ops.mean(ops.square(dense(x) - y)) - 0.3 * ops.mean(ops.square(dense(more)))


def stacked(dense, data):
    """Two views of each example, one below the other."""
    x, y = data
    first, second = ops.split(dense(x), 2)
    return ops.mean(ops.square(first - y)) + ops.mean(ops.abs(second - y))


def of_graphs(dense, data):
    nodes, graphs, labels = data
    return ops.mean(ops.square(tf.math.segment_mean(dense(nodes), graphs) - labels))


def graph_batches(*_):
    """Two graphs of four nodes each, numbered within the batch."""
    nodes = tf.data.Dataset.from_tensor_slices((X.reshape(5, 4, 4), Y[:5]))
    numbers = tf.repeat(tf.range(2), 4)
    return nodes.batch(2).map(lambda x, y: (tf.reshape(x, [-1, 4]), numbers[: tf.size(x) // 4], y))


def views(*_):
    data = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(20, seed=3).batch(6)
    return data.map(lambda x, y: (tf.concat([x, 2 * x], 0), y))


KINDS = {
    "two datasets": (two_means, lambda: tf.data.Dataset.zip(((batches((X, Y), 5)), batches(MORE, 13)))),
    "known lengths": (two_means, lambda: tf.data.Dataset.zip((batches((X, Y), 5).take(4), batches(MORE, 13).take(3)))),
    "graphs and their nodes": (of_graphs, graph_batches),
    "two views, shuffled by a seed": (stacked, views),
}


@pytest.mark.rotates
@pytest.mark.parametrize("kind", KINDS)
def test_parts_of_other_lengths_are_trained_on_as_in_one_process(kind):
    loss, data = KINDS[kind]

    def make(train):
        model = Model(loss)
        model.compile(keras.optimizers.SGD(0.1))
        return model, train(model, data(), epochs=2, verbose=0).history["loss"]

    check(make)


class Molecules(keras.utils.PyDataset):
    """Four graphs of five nodes each, with a label and a weight of each graph."""

    def __len__(self):
        return 3

    def __getitem__(self, number):
        first = number * 4
        return (MORE[first : first + 20], GRAPHS.astype("int32")), (Y[first : first + 4] > 0.5).astype("float32")


class Pooling(layers.Layer):
    """The sum over the nodes of each graph."""

    def call(self, inputs):
        return ops.segment_sum(inputs[0], inputs[1], num_segments=5)[:4]


@pytest.mark.parametrize("weights", [None, {0: 0.25, 1: 2.0}])
def test_labels_of_graphs_of_an_indexed_dataset_are_trained_on_as_in_one_process(weights):
    def make(train):
        nodes, graphs = keras.Input([4]), keras.Input([], dtype="int32")
        model = keras.Model([nodes, graphs], layers.Dense(1)(Pooling()([layers.Dense(3)(nodes), graphs])))
        model.compile("sgd", "binary_crossentropy", metrics=["mae"])
        options = {"validation_data": Molecules(), "class_weight": weights}
        return model, train(model, Molecules(), epochs=2, verbose=0, **options).history

    check(make, sizes=(3,))


def test_a_part_whose_length_changes_with_the_batch_is_refused():
    def parts():
        for more in (5, 7):
            yield (X[:5], Y[:5]), MORE[:more]

    spec = ((tf.TensorSpec([None, 4]), tf.TensorSpec([None, 1])), tf.TensorSpec([None, 4]))
    data = tf.data.Dataset.from_generator(parts, output_signature=spec)
    model = Model(two_means)
    model.compile("sgd")
    with pytest.raises(
        SessionError, match="different numbers of rows: 5, 7. .* this must be known when the step is traced"
    ):
        fit_by(2, model, data, verbose=0)
