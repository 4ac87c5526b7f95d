"""Updates of whole tables are recognized and made updates by row, with the numbers of the graph as it was."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.analysis.reading.by_row import differences, keras_step, tf1_step

v1 = tf.compat.v1
KERAS = keras.optimizers
STEPS = 40
# What is cut differs from the dense graph by the rounding of a missed update, 2^-24, for each of at most STEPS.
CLOSE = STEPS * 2.0**-24


def slow(name, make):
    return pytest.param(make, id=name, marks=pytest.mark.slow)


def hand_written(loss, table):
    """Momentum as a script may have it, without an optimizer; the gradient is made dense."""
    (slices,) = tf.gradients(loss, [table])
    gradient = tf.math.unsorted_segment_sum(slices.values, slices.indices, table.shape[0])
    speed = v1.get_variable("speed", initializer=tf.zeros_like(table), use_resource=True)
    with tf.control_dependencies([speed.assign(0.9 * speed + gradient)]):
        return table.assign_sub(0.1 * speed.read_value(), read_value=False)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: tf1_step(lambda loss, _: v1.train.AdamOptimizer(0.1).minimize(loss)), id="tf.train Adam"),
        pytest.param(lambda: tf1_step(hand_written), id="hand-written momentum"),
        pytest.param(lambda: keras_step(KERAS.Adam(0.1)), id="Adam"),
        pytest.param(lambda: keras_step(KERAS.SGD(0.1, momentum=0.9)), id="momentum"),
        slow("nesterov", lambda: keras_step(KERAS.SGD(0.1, momentum=0.9, nesterov=True))),
        slow("clipped Adam", lambda: keras_step(KERAS.Adam(0.1, clipnorm=0.1))),
        slow("globally clipped Adam", lambda: keras_step(KERAS.Adam(0.1, global_clipnorm=0.1))),
        slow("Adam with clipped elements", lambda: keras_step(KERAS.Adam(0.1, clipvalue=0.01))),
        slow("scheduled Adam", lambda: keras_step(KERAS.Adam(KERAS.schedules.ExponentialDecay(0.1, 10, 0.9)))),
        slow("Adam with EMA", lambda: keras_step(KERAS.Adam(0.1, use_ema=True))),
        slow("AMSGrad", lambda: keras_step(KERAS.Adam(0.1, amsgrad=True))),
        slow("Adamax", lambda: keras_step(KERAS.Adamax(0.1))),
        slow("Nadam", lambda: keras_step(KERAS.Nadam(0.1))),
        slow("Lion", lambda: keras_step(KERAS.Lion(0.1))),
        slow("momentum RMSprop", lambda: keras_step(KERAS.RMSprop(0.1, centered=True, momentum=0.9))),
    ],
)
def test_numbers_are_those_of_the_dense_graph_bit_for_bit(make):
    found, _, dense = differences(make(), STEPS)
    assert len(found) > 1 and all(np.isfinite(value).all() for value in dense.values())
    assert {name: difference for name, difference in found.items() if difference} == {}


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: keras_step(KERAS.AdamW(0.1)), id="AdamW"),
        pytest.param(lambda: keras_step(KERAS.RMSprop(0.1)), id="RMSprop"),
        slow("SGD with decay", lambda: keras_step(KERAS.SGD(0.1, weight_decay=0.01))),
        slow("Adadelta", lambda: keras_step(KERAS.Adadelta(0.1))),
        slow("Ftrl", lambda: keras_step(KERAS.Ftrl(0.1, l1_regularization_strength=0.01))),
    ],
)
def test_numbers_are_those_of_the_dense_graph_but_for_the_rounding_of_what_is_cut(make):
    found, _, _ = differences(make(), STEPS)
    assert {name: difference for name, difference in found.items() if difference > CLOSE} == {}
