"""tf.data pipelines that are taken apart: what is read here, and what is done to each row elsewhere."""

import numpy as np
import pytest
import tensorflow as tf

from parallax.functions.batches.row_pipeline import RunningPipeline
from parallax.keras.datasets import ELEMENTS, elements_of, split_dataset

N = 23
RAW = [np.full([3], float(number), np.float32).tobytes() for number in range(N)]
FACTOR = tf.constant([2.0, 3.0])
TABLE = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["a"], [1]), 0)


@tf.function
def shifted(x):
    return x + FACTOR[1]


def decoded(raw, label):
    return tf.reshape(tf.io.decode_raw(raw, tf.float32), [3]), label


def scaled(x, label):
    return {"x": tf.cond(label % 2 == 0, lambda: shifted(x), lambda: x * FACTOR[0]), "same": label}, label


def source():
    return tf.data.Dataset.from_tensor_slices((RAW, np.arange(N)))


def unordered(dataset):
    options = tf.data.Options()
    options.deterministic = False
    return dataset.with_options(options)


MOVED = {
    "one function": lambda: source().map(decoded).batch(5),
    "several, in parallel": lambda: source().map(decoded, 4).prefetch(2).map(scaled, tf.data.AUTOTUNE).batch(4),
    "chosen afterwards": lambda: source().map(decoded).take(20).skip(3).shard(2, 1).repeat(3).map(scaled).batch(4),
    "after a shuffle with a seed": lambda: source().shuffle(30, seed=3).map(decoded).batch(6, drop_remainder=True),
    "options": lambda: unordered(source().map(decoded).batch(5, num_parallel_calls=2).prefetch(1)),
    "strings": lambda: source().map(lambda raw, label: (tf.strings.length(raw), tf.strings.as_string(label))).batch(5),
    "after one that stays": lambda: source().map(decoded).cache().map(scaled).batch(5),
    "after a filter": lambda: source().filter(lambda raw, label: label > 3).map(decoded).batch(5),
}
LEFT = {
    "no function": lambda: source().batch(5),
    "no batches": lambda: source().map(decoded),
    "of batches": lambda: source().batch(5).map(lambda raw, label: (label, label)),
    "calls Python": lambda: source().map(lambda raw, n: (tf.py_function(float, [n], tf.float32)[None], n)).batch(5),
    "has a table": lambda: source().map(lambda raw, n: (TABLE.lookup(raw), n)).batch(5),
    "cached afterwards": lambda: source().map(decoded).cache().batch(5),
    "before a shuffle with a seed": lambda: source().map(decoded).shuffle(30, seed=3).batch(5),
    "ragged": lambda: source().map(lambda raw, n: tf.RaggedTensor.from_row_lengths([1, 2], [2])).batch(5),
    "of unknown length": lambda: (
        source().map(lambda _, n: tf.range(n)).filter(lambda _: True).map(tf.reduce_sum).batch(5)
    ),
    "padded": lambda: source().map(decoded).padded_batch(5),
}


def made(dataset, which="train"):
    """The batches of a dataset, by its elements and what is done to rows of them."""
    split = split_dataset(dataset, which)
    running = RunningPipeline(split.pipeline)
    parts = [[np.asarray(one) for one in elements_of(batch, which)] for batch in split.elements]
    found = [running.make(one) for one in parts]
    running.close()
    return found


@pytest.mark.parametrize("kind", MOVED)
def test_rows_are_those_of_the_pipeline_that_was_taken_apart(kind):
    expected = [[np.asarray(one) for one in tf.nest.flatten(batch)] for batch in MOVED[kind]()]
    found = made(MOVED[kind]())
    assert len(expected) > 1
    lists = [[[one.tolist() for one in batch] for batch in batches] for batches in (found, expected)]
    if kind == "options":  # not deterministic: TensorFlow gives batches in any order
        lists = [sorted(batches, key=lambda batch: batch[-1]) for batches in lists]
    assert lists[0] == lists[1]


@pytest.mark.parametrize("kind", LEFT)
def test_a_pipeline_stays_where_nothing_can_be_moved(kind):
    assert split_dataset(LEFT[kind](), "train") is None


def test_a_shuffle_without_a_seed_comes_before_the_functions_and_gives_each_row_once():
    tf.random.set_seed(None)
    dataset = source().map(decoded).shuffle(30).batch(5)
    labels = np.concatenate([batch[1] for batch in made(dataset)])
    assert sorted(labels.tolist()) == list(range(N)) and labels.tolist() != list(range(N))
    split = split_dataset(dataset, "test")
    assert split.elements.element_spec[ELEMENTS + "test"][0].dtype == tf.string


def test_a_seeded_shuffle_goes_on_where_the_script_has_read_it():
    dataset = source().shuffle(30, seed=3).map(decoded).batch(5)
    list(dataset)
    found = np.concatenate([batch[1] for batch in made(dataset)])
    other = source().shuffle(30, seed=3).map(decoded).batch(5)
    list(other)
    assert found.tolist() == np.concatenate([np.asarray(label) for _, label in other]).tolist()


def test_workers_draw_other_numbers_and_go_on_drawing():
    tf.random.set_seed(1)
    dataset = source().map(lambda raw, label: tf.random.uniform([2]) + tf.cast(label, tf.float32)).batch(N)
    split = split_dataset(dataset, "train")
    assert split.pipeline.draws
    elements = [[np.asarray(one) for one in elements_of(batch, "train")] for batch in split.elements]
    drawn = []
    for rank in range(2):
        running = RunningPipeline(split.pipeline, rank)
        drawn += [running.make(elements[0])[0] for _ in range(2)]
        running.close()
    assert len({one.tobytes() for one in drawn}) == 4
    assert split.pipeline.is_like([drawn[0]], [drawn[1]]) and not split.pipeline.is_like([drawn[0]], [drawn[1][:1]])


def test_rows_of_another_machine_are_compared_by_value():
    pipeline = split_dataset(source().map(decoded).batch(5), "train").pipeline
    row = [np.array([[1.0, np.nan]], np.float32), np.array([3])]
    assert pipeline.is_like(row, [row[0] + 1e-7, row[1]])
    assert not pipeline.is_like(row, [row[0] + 1e-2, row[1]])
    assert not pipeline.is_like(row, [row[0], row[1] + 1])
