"""Datasets whose parts run in parallel give the same batches each time."""

import zlib
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.data.ops.dataset_ops import DatasetV2

from parallax.functions.input_order import iterate_in_order

IMAGES = np.random.RandomState(0).rand(192, 16, 16, 3).astype("float32")


@pytest.fixture
def in_order():
    with mock.patch.object(DatasetV2, "__iter__", DatasetV2.__iter__):
        iterate_in_order()
        yield


def drawn(image):
    image = tf.image.random_brightness(tf.image.random_flip_left_right(image), 0.2)
    return image + tf.nn.conv2d(image[None], tf.ones([5, 5, 3, 3]), 1, "SAME")[0]  # long enough to overlap


def by_python(image):
    noise = tf.py_function(lambda: np.random.rand(), [], tf.float32)
    return image + noise


def parallel(function):
    return lambda: images().map(function, num_parallel_calls=tf.data.AUTOTUNE)


def images():
    return tf.data.Dataset.from_tensor_slices(IMAGES).shuffle(64)


def interleaved():
    return tf.data.Dataset.range(12).interleave(
        lambda number: images().skip(16 * number).take(16).map(drawn),
        cycle_length=4,
        num_parallel_calls=4,
        deterministic=False,
    )


DATASETS = {
    "a parallel map": parallel(drawn),
    "a parallel map that calls Python": parallel(by_python),
    "a cached parallel map": lambda: parallel(drawn)().cache().map(drawn, num_parallel_calls=4),
    "a parallel interleave": interleaved,
    "a generator": lambda: tf.data.Dataset.from_generator(
        lambda: iter(IMAGES), output_signature=tf.TensorSpec([16, 16, 3])
    ).map(drawn, num_parallel_calls=4, deterministic=False),
}


def digest(make):
    """Of two epochs of a dataset that is made anew, as each worker makes it."""
    tf.random.set_seed(1)
    np.random.seed(1)
    found, dataset = 0, make().batch(16).prefetch(tf.data.AUTOTUNE)
    for _ in range(2):
        for batch in dataset:
            found = zlib.crc32(batch.numpy().tobytes(), found)
    return found


@pytest.mark.parametrize("kind", DATASETS)
def test_what_is_drawn_in_parallel_is_the_same_each_time(kind, in_order):
    assert len({digest(DATASETS[kind]) for _ in range(3)}) == 1


def test_a_dataset_keeps_its_length_and_structure(in_order):
    dataset = tf.data.Dataset.from_tensor_slices({"x": IMAGES}).batch(16)
    assert [batch["x"].shape[0] for batch in dataset] == [16] * 12
    assert next(dataset.as_numpy_iterator())["x"].shape == (16, 16, 16, 3)
