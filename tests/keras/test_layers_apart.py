"""Layers of images of which the plan is silent: their examples are proven to stay apart."""

import keras
import numpy as np
import pytest

from tests.keras.two_here import plan_of_fit

layers, ops = keras.layers, keras.ops
Y = np.zeros([6, 1], np.float32)


def notes_of(layer, shape):
    inputs = keras.Input(shape)
    rows = layers.Flatten()(layers.Dense(3)(layer(layers.Dense(2)(inputs))))
    model = keras.Model(inputs, layers.Dense(1)(rows))
    model.compile("sgd", "mse")
    x = np.zeros([6, *shape], np.float32)
    return plan_of_fit(model, x, Y, batch_size=4, validation_data=(x, Y)).notes


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: layers.Conv2DTranspose(2, 3, strides=2), (6, 6, 3)),
        (lambda: layers.UpSampling2D(interpolation="bilinear"), (6, 6, 3)),
        (lambda: layers.Resizing(4, 4, interpolation="bicubic"), (6, 6, 3)),
        (lambda: layers.MaxPooling3D(), (4, 4, 4, 2)),
        (lambda: layers.AveragePooling3D(2), (4, 4, 4, 2)),
        (lambda: layers.Lambda(lambda x: ops.linspace(x[:, 0], x[:, 1], 5, axis=1)), (6, 4)),
    ],
    ids=["transposed", "bilinear", "bicubic", "MaxPooling3D", "AveragePooling3D", "linspace"],
)
def test_layers_keep_examples_apart(make, shape):
    assert notes_of(make(), shape) == ()


def test_examples_that_are_taken_by_numbers_are_told():
    taken = layers.Lambda(lambda x: x + ops.mean(ops.take(x, [0, 1], axis=0), axis=0))
    assert notes_of(taken, (6, 4)) != ()
