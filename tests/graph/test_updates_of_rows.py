"""Updates of the rows that have gradients, in one op: there the bits of the dense computation, elsewhere nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from parallax.graph.row_updates import row_update_ops
from tests.graph.row_programs import OPTIMIZERS
from tests.graph.test_row_updates import Both, both, same_bits, table

ROWS = 200


def only_rows(pair: Both, ids: Any, values: Any, rate: float, program: str = "") -> None:
    """The update of the ops' side; the dense side is left to the test."""
    dtype = pair.dtype
    update = row_update_ops().parallax_update_only_rows(
        tf.constant(values, dtype),
        tf.constant(ids, tf.int64),
        tf.constant(pair.optimizer.scalars(rate, 1), dtype),
        [variable.handle for variable in pair.lazy],
        program=program or pair.optimizer.program(dtype),
    )
    pair.session.run(update)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("width", [1, 3, 16, 128, 300])
@pytest.mark.parametrize("name", ["adam", "momentum"])
def test_rows_with_gradients_have_the_bits_of_the_dense_update_and_others_stay(name, width, dtype):
    with both(OPTIMIZERS[name], table(1, ROWS, width, dtype=dtype)) as pair:
        random = np.random.default_rng(2)
        ids = random.integers(0, ROWS, 90)  # with equal ones
        values = random.normal(size=(90, width))
        before = pair.session.run(pair.lazy)
        only_rows(pair, ids, values, 0.01)
        pair.session.run(  # the dense side alone
            pair._dense_update(), {pair.ids: ids, pair.values: values, pair.scalars: pair.optimizer.scalars(0.01, 1)}
        )
        met = np.unique(ids)
        for first, last, dense in zip(before, *pair.session.run((pair.lazy, pair.dense)), strict=True):
            assert same_bits(last[met], dense[met])
            others = np.setdiff1d(np.arange(ROWS), met)
            assert same_bits(last[others], first[others]) and len(others)


def test_no_rows_are_no_update_and_rows_of_several_axes_are_rows():
    with both(OPTIMIZERS["momentum"], table(3, 6, 2, 4)) as pair:
        first = pair.session.run(pair.lazy)
        only_rows(pair, np.zeros([0]), np.zeros([0, 2, 4]), 0.1)
        assert all(same_bits(*one) for one in zip(first, pair.session.run(pair.lazy), strict=True))
        only_rows(pair, [5, 5], np.ones([2, 2, 4]), 0.1)
        changed = pair.session.run(pair.lazy[0])
        np.testing.assert_allclose(changed[5], first[0][5] - np.float32(0.2), rtol=1e-6)
        assert same_bits(changed[:5], first[0][:5])


TWO_SUMS = "states 2\nscalars 0\nr0 = add s0 g0\nr1 = mul g1 g1\nr2 = sub s1 r1\nset s0 r0\nset s1 r2\n"


@pytest.mark.parametrize("op", ["parallax_update_only_rows", "parallax_update_rows"])
@pytest.mark.parametrize("width", [1, 3, 40, 130])
def test_several_gradients_of_a_row_stand_one_after_the_other_and_are_added_up_apart(width, op):
    with both(OPTIMIZERS["momentum"], table(5, ROWS, width)) as pair:
        random = np.random.default_rng(2)
        ids, values = random.integers(0, ROWS, 150), random.normal(size=(150, 2 * width)).astype(np.float32)
        first = pair.session.run(pair.lazy)
        handles = [variable.handle for variable in pair.lazy]
        update = getattr(row_update_ops(), op)(
            values, ids, tf.zeros([0]), handles, program=TWO_SUMS, gradients=2, name="update"
        )
        pair.session.run(update)
        sums = np.zeros([ROWS, 2 * width], np.float32)
        np.add.at(sums, ids, values)
        last = pair.session.run(pair.lazy)
        np.testing.assert_allclose(last[0], first[0] + sums[:, :width], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(last[1], first[1] - sums[:, width:] ** 2, rtol=1e-5, atol=1e-5)


def test_what_does_not_fit_is_refused_before_anything_is_written():
    with both(OPTIMIZERS["adam"], table(4, 6, 2)) as pair:
        first = pair.session.run(pair.lazy)
        refused = {
            r"indices\[1\] = 6 is not in \[0, 6\)": ([0, 6], np.ones([2, 2])),
            r"shape of as many rows as there are indices, \[2,2\], and these are \[2,3\]": ([0, 1], np.ones([2, 3])),
        }
        for error, (ids, values) in refused.items():
            with pytest.raises(tf.errors.InvalidArgumentError, match=error):
                only_rows(pair, ids, values, 0.1)
        with pytest.raises(tf.errors.InvalidArgumentError, match="has 2 where the op has 3"):
            only_rows(pair, [0], np.ones([1, 2]), 0.1, OPTIMIZERS["momentum"].program(np.float32))
        assert all(same_bits(*one) for one in zip(first, pair.session.run(pair.lazy), strict=True))


def test_what_has_been_read_stays_as_it_was():
    with both(OPTIMIZERS["momentum"], table(5, 6, 2)) as pair:
        read = pair.lazy[0].read_value()
        with tf.control_dependencies([read]):  # the read may share the variable's memory
            update = row_update_ops().parallax_update_only_rows(
                tf.ones([6, 2]),
                tf.range(6),
                [0.5],
                [one.handle for one in pair.lazy],
                program=pair.optimizer.program(np.float32),
            )
        with tf.control_dependencies([update]):
            before = tf.identity(read)
        assert same_bits(pair.session.run(before), table(5, 6, 2))
        assert not same_bits(pair.session.run(pair.lazy[0]), table(5, 6, 2))
