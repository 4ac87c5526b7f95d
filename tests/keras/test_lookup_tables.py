"""Models that look up words or ids in tables, on two workers: what a static table holds travels with the graph."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from parallax.base.errors import GraphError
from parallax.functions.tracing.step_graph import StepGraph
from tests.keras.here import difference, fit_plainly, outcome
from tests.keras.two_here import fit_by_two, plan_of_fit

pytestmark = pytest.mark.rotates(days=3)

layers = keras.layers
WORDS = ["red", "green", "blue", "black", "white"]
ROWS = 13  # batches of five, cut into two and three, and a last one of three
rng = np.random.RandomState(1)
TEXTS = tf.constant([[" ".join(rng.choice([*WORDS, "grey"], 3))] for _ in range(ROWS)])
COLORS = tf.constant(rng.choice([*WORDS, "grey"], (ROWS, 2)))
NUMBERS = rng.choice([10, 20, 30, 40], (ROWS, 2)).astype("int64")
Y = rng.rand(ROWS, 1).astype("float32")
OPTIONS = {"batch_size": 5, "epochs": 2, "verbose": 0, "shuffle": False}


class Finds(layers.Layer):
    """Looks up in a table of its own."""

    def __init__(self, table):
        super().__init__()
        self.table = table

    def call(self, x):
        return tf.ensure_shape(tf.cast(self.table.lookup(x), tf.int32), x.shape)


def static(default=0):
    keys, values = tf.constant(WORDS), tf.range(1, len(WORDS) + 1, dtype=tf.int64)
    return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, values), default)


def with_buckets():
    keys, values = tf.constant(WORDS), tf.range(len(WORDS), dtype=tf.int64)
    return tf.lookup.StaticVocabularyTable(tf.lookup.KeyValueTensorInitializer(keys, values), 2)


def mutable():
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, 0)
    table.insert(WORDS, tf.range(1, len(WORDS) + 1, dtype=tf.int64))
    return table


def model(finds, shape, dtype):
    inputs = keras.Input(shape, dtype=dtype)
    rows = layers.Embedding(12, 3)(finds(inputs))
    made = keras.Model(inputs, layers.Dense(1)(layers.Flatten()(rows)))
    made.compile(keras.optimizers.SGD(0.1), "mse")
    return made


MODELS = {
    "words": lambda: (model(layers.StringLookup(vocabulary=WORDS), (2,), "string"), COLORS),
    "numbers": lambda: (model(layers.IntegerLookup(vocabulary=[10, 20, 30]), (2,), "int64"), NUMBERS),
    "texts": lambda: (model(vectorization(), (1,), "string"), TEXTS),
    "a table": lambda: (model(Finds(static()), (2,), "string"), COLORS),
    "a table with buckets": lambda: (model(Finds(with_buckets()), (2,), "string"), COLORS),
}


def vectorization():
    return layers.TextVectorization(vocabulary=WORDS, output_sequence_length=4)


@pytest.mark.rotates
@pytest.mark.parametrize("kind", MODELS)
def test_a_model_with_a_table_trains_and_evaluates_as_in_keras(kind):
    def make(train):
        made, x = MODELS[kind]()
        history = train(made, x, Y, validation_data=(x[:7], Y[:7]), **OPTIONS).history
        return made, history

    assert difference(outcome(fit_by_two, make), outcome(fit_plainly, make)) <= 1e-6


@pytest.mark.parametrize("length", [None, 4])
def test_words_of_texts_of_different_lengths_stay_with_their_texts(length):
    """Rows are as long as the longest text of the global batch, or cut."""
    texts = tf.constant([[" ".join(rng.choice(WORDS, 1 + (3 * row) % 7))] for row in range(ROWS)])

    def build():
        inputs = keras.Input((1,), dtype="string")
        ids = layers.TextVectorization(vocabulary=WORDS, output_sequence_length=length)(inputs)
        states = layers.SimpleRNN(3)(layers.Embedding(12, 3)(ids))  # unmasked: it sees how far rows are padded
        made = keras.Model(inputs, layers.Dense(1)(states))
        made.compile(keras.optimizers.SGD(0.1), "mse")
        return made

    def make(train):
        made = build()
        return made, train(made, texts, Y, **OPTIONS).history

    assert difference(outcome(fit_by_two, make), outcome(fit_plainly, make)) <= 1e-6
    assert [one for one in plan_of_fit(build(), texts, Y, batch_size=5).notes if "all-gathered" in one] == []


def test_a_table_that_can_be_changed_is_refused_with_the_way_to_make_a_static_one():
    with pytest.raises(GraphError, match="whose contents can change.*StaticHashTable"):
        plan_of_fit(model(Finds(mutable()), (2,), "string"), COLORS, Y)


def test_a_resource_that_is_no_table_is_refused_by_its_name():
    numbers = iter(tf.data.Dataset.range(3))
    with pytest.raises(GraphError, match="an iterator, a queue, a dataset"):
        concrete = tf.function(lambda: next(numbers)).get_concrete_function()
        StepGraph([]).add("step", concrete)


def test_a_graph_lists_a_table_in_the_order_of_its_keys():
    graph = StepGraph([])
    table = static()
    graph.add("step", tf.function(lambda x: table.lookup(x)).get_concrete_function(tf.TensorSpec([None], tf.string)))
    (filled,) = graph.graph.get_collection(tf.compat.v1.GraphKeys.TABLE_INITIALIZERS)
    keys = tf.make_ndarray(filled.inputs[1].op.get_attr("value"))
    assert [key.decode() for key in keys] == sorted(WORDS)
