"""The formulas of optimizers that work by row, against NumPy, and what they refuse."""

import numpy as np
import pytest
import tensorflow as tf

from parallax.base.errors import ConfigError
from parallax.optimizers import AdmittedFtrlOptimizer, LazyAdamOptimizer, RowWiseAdagradOptimizer
from parallax.optimizers.row_rules import (
    AdmittedFtrlRule,
    LazyAdamRule,
    RowWiseAdagradRule,
    sightings_until,
)

G = np.array([[1.0, -3.0], [0.0, 0.5]], np.float32)
W = np.array([[0.1, 0.2], [0.3, 0.4]], np.float32)


def constants(*arrays):
    return [tf.constant(np.asarray(a, np.float32)) for a in arrays]


def test_row_wise_adagrad_takes_the_root_of_one_number_a_row():
    (gradient, accumulator, rate) = constants(G, [0.1, 0.2], 0.5)
    change, [kept] = RowWiseAdagradRule(0.1, 1e-8).update(gradient, None, [accumulator], rate, [])
    sums = np.array([0.1 + (1 + 9) / 2, 0.2 + 0.25 / 2], np.float32)
    np.testing.assert_allclose(kept, sums, 1e-6)
    np.testing.assert_allclose(change, 0.5 * G / np.sqrt(sums)[:, None], 1e-6)


def test_row_wise_adagrad_of_rows_of_one_number_is_adagrad():
    (gradient, accumulator, rate) = constants([1.0, 2.0], [0.0, 0.0], 0.5)
    change, _ = RowWiseAdagradRule(0.0, 0.0).update(gradient, None, [accumulator], rate, [])
    np.testing.assert_allclose(change, [0.5, 0.5], 1e-6)


def test_lazy_adam_is_adam_for_the_rows_that_it_sees():
    gradient, m, v, rate, p1, p2 = constants(G, W, np.square(W), 0.01, 0.9**3, 0.99**3)
    change, [new_m, new_v] = LazyAdamRule(0.9, 0.99, 1e-8).update(gradient, None, [m, v], rate, [p1, p2])
    first, second = 0.9 * W + 0.1 * G, 0.99 * np.square(W) + 0.01 * np.square(G)
    np.testing.assert_allclose(new_m, first, 1e-5)
    np.testing.assert_allclose(new_v, second, 1e-5)
    corrected = 0.01 * np.sqrt(1 - 0.99**3) / (1 - 0.9**3)
    np.testing.assert_allclose(change, corrected * first / (np.sqrt(second) + 1e-8), 1e-5)


def test_ftrl_trains_admitted_rows_and_leaves_others_as_they_are():
    gradient, value, n, z, waits, rate = constants(G, W, np.zeros_like(G), np.zeros_like(G), [1.0, 2.0], 0.5)
    new, [new_n, new_z, left] = AdmittedFtrlRule(1.0, 0.05, 0.1, 2, 1.0).update(
        gradient, value, [n, z, waits], rate, []
    )
    sums = G[0] - np.abs(G[0]) / 0.5 * W[0]
    shrunk = np.sign(sums) * np.maximum(np.abs(sums) - 0.05, 0)
    np.testing.assert_allclose(new[0], -shrunk / ((1 + np.abs(G[0])) / 0.5 + 0.1), 1e-5)
    np.testing.assert_array_equal(new[1], W[1])
    np.testing.assert_array_equal([new_n[1], new_z[1]], np.zeros((2, 2)))
    np.testing.assert_array_equal(left, [0.0, 1.0])


def test_sightings_until_one_admits_are_geometric():
    drawn = sightings_until(0.25, tf.constant([0.0, 0.2, 0.26, 0.44, 0.99]))
    np.testing.assert_array_equal(drawn, [1, 1, 2, 3, 17])  # 1 - 0.75^k passes each number first at this k


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: RowWiseAdagradOptimizer(0.1, epsilon=-1.0), "epsilon must be at least 0, got -1.0"),
        (lambda: LazyAdamOptimizer(beta1=1.0), "beta1 must be at least 0 and below 1, got 1.0"),
        (lambda: AdmittedFtrlOptimizer(admit_after=0), "admit_after must be at least 1, got 0"),
        (lambda: AdmittedFtrlOptimizer(admit_probability=0.0), "above 0 and at most 1, got 0.0"),
        (lambda: AdmittedFtrlOptimizer(admit_after=2, admit_probability=0.5), "either by count or by probability"),
    ],
)
def test_numbers_out_of_range_are_refused(make, words):
    with pytest.raises(ConfigError, match=words):
        make()
