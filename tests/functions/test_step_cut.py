"""Micro-batches of workers' shares: all workers have as many, and together the rows of the batch."""

import numpy as np
import pytest
import tensorflow as tf

from parallax.functions.batches.micro_batches import StepCut
from parallax.functions.batches.split_batch import RaggedRows, ReplicatedPart, take_part
from parallax.functions.tracing.step_graph import StepGraph

FACTOR = np.arange(3.0, dtype="f")


def made_step():
    """A step that takes rows, ragged rows of two levels, a part given whole and a number."""
    ragged = tf.RaggedTensorSpec([None, None, None], tf.int64, 2, tf.int64)
    specs = [tf.TensorSpec([None, 2]), ragged, tf.TensorSpec([3]), tf.TensorSpec([])]
    concrete = tf.function(lambda x, words, factor, rate: x * rate).get_concrete_function(*specs)
    return StepGraph([]).add("step", concrete, True, whole=frozenset([4]))


def batch(rows):
    outer = tf.RaggedTensor.from_row_lengths(tf.range(sum(range(rows)) * 2, dtype=tf.int64), [2] * sum(range(rows)))
    words = RaggedRows.of(tf.RaggedTensor.from_row_lengths(outer, list(range(rows))))
    return [np.arange(rows * 2.0).reshape(rows, 2), words, ReplicatedPart(FACTOR), np.float32(0.5)]


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("rows", [1, 2, 5, 8, 13])
def test_micro_batches_are_the_batch(rows, count, size):
    step, given = made_step(), batch(rows)
    shares = [take_part(given, rank, size) for rank in range(size)]
    cuts = [StepCut(count, {"step"}).micro_batches(step, one, size) for one in shares]
    assert len({len(own) for own in cuts}) == 1 and 1 <= len(cuts[0]) <= count
    for together in zip(*cuts, strict=True):
        assert {one.total for one in together} == {sum(one.rows for one in together)}
        assert all(len(one.arrays[0]) == max(one.rows, 1) and np.array_equal(one.arrays[4], FACTOR) for one in together)
    for own, share in zip(cuts, shares, strict=True):
        found = np.concatenate([one.arrays[0][: one.rows] for one in own])
        np.testing.assert_array_equal(found, share.arrays[0][: share.rows])
        words = [one.arrays[1] for one in own if one.rows]
        assert not share.rows or np.concatenate(words).tolist() == share.arrays[1].tolist()
        lengths = [np.diff(one.arrays[2]) for one in own if one.rows]
        assert not share.rows or np.concatenate(lengths).tolist() == np.diff(share.arrays[2]).tolist()


def test_a_step_that_does_not_train_or_has_no_rows_is_not_cut():
    step, given = made_step(), take_part(batch(4), 0, 1)
    assert StepCut(4).micro_batches(step, given, 1) == [given]
    number = take_part([np.float32(1.0)], 0, 1)
    assert StepCut(4, {"step"}).micro_batches(step, number, 1) == [number] and number.weight_in(number.total) == 1.0


def test_what_adds_up_is_added_and_of_the_rest_the_last_counts():
    cut = StepCut(3, {"step"}, {"loss:0", "right:0"})
    assert cut.combine_results("loss:0", [np.float32(0.5), np.float32(0.25)]) == np.float32(0.75)
    assert cut.combine_results("right:0", [np.int32(2), np.int32(3)]).dtype == np.int32
    assert cut.combine_results("norm:0", [None, np.float32(2.0)]) == 2.0
