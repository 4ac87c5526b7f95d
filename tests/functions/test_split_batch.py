"""A worker's rows of a batch: those of all workers, in order, are the batch."""

import numpy as np
import pytest
import tensorflow as tf

from parallax.base.errors import SessionError
from parallax.functions.batches.numbered_rows import NumberedArrays
from parallax.functions.batches.shared_arrays import SharedArrays
from parallax.functions.batches.split_batch import RaggedRows, count_rows, take_part


@pytest.mark.parametrize("size", [1, 2, 3, 9])
def test_shares_of_all_workers_are_the_batch(size):
    ids, texts = np.arange(14).reshape(7, 2), np.array([b"a", b"b", b"c", b"d", b"e", b"f", b"g"])
    batch = ({"ids": tf.constant(ids), "texts": tf.constant(texts)}, None)
    shares = [take_part(batch, rank, size) for rank in range(size)]
    assert np.concatenate([share.arrays[0][: share.rows] for share in shares]).tolist() == ids.tolist()
    assert np.concatenate([share.arrays[1][: share.rows] for share in shares]).tolist() == texts.tolist()
    assert {share.total for share in shares} == {7}


def test_a_worker_without_rows_has_a_stand_in_that_is_a_row_of_the_batch():
    shares = [take_part([np.arange(2), np.float32(0.5)], rank, 5) for rank in range(5)]
    assert [share.rows for share in shares] == [0, 0, 1, 0, 1]
    assert [share.arrays[0].tolist() for share in shares] == [[0], [0], [0], [1], [1]]
    assert [share.is_stand_in for share in shares] == [True, True, False, True, False]
    assert {float(share.arrays[1]) for share in shares} == {0.5}
    nothing = take_part([np.arange(0)], 0, 2)
    assert (nothing.arrays[0].tolist(), nothing.is_stand_in) == ([], False)


def test_a_share_of_ragged_rows_has_their_values_and_where_they_end():
    batch = tf.ragged.constant([[1], [2, 3], [], [4]])
    assert [part.tolist() for part in take_part(batch, 1, 2).arrays] == [[4], [0, 0, 1]]
    assert [part.tolist() for part in take_part(batch[:1], 0, 2).arrays] == [[1], [0, 1]]


@pytest.mark.parametrize("numbers", [[2, 3, 4, 5, 6], [6, 0, 3, 3, 1], [4], []])
def test_shares_of_numbered_rows_are_those_of_the_rows(numbers):
    ids, labels, numbers = np.arange(16).reshape(8, 2), np.arange(8.0), np.array(numbers, np.int64)
    batch = NumberedArrays(SharedArrays.copy_of([ids, labels])).batch(numbers)
    assert count_rows(batch) == len(numbers)
    for rank in range(3):
        expected = take_part([ids[numbers], labels[numbers]], rank, 3)
        assert [part.tolist() for part in take_part(batch, rank, 3).arrays] == [p.tolist() for p in expected.arrays]


def test_rows_that_follow_one_another_are_not_copied():
    shared = SharedArrays.copy_of([np.arange(16).reshape(8, 2)])
    (rows,) = NumberedArrays(shared).batch(np.arange(3, 7))
    assert np.shares_memory(rows[1:3], shared.arrays[0])


def test_ragged_rows_of_several_levels_are_cut_as_tensorflow_cuts_them():
    ragged = tf.ragged.constant([[[1, 2], []], [], [[3], [4, 5, 6], [7]], [[8]]])
    rows = RaggedRows.of(ragged)
    assert rows.shape[0] == 4
    for first, end in ((0, 1), (1, 3), (2, 4), (1, 2), (0, 4)):
        expected = tf.nest.flatten(ragged[first:end], expand_composites=True)
        assert [part.tolist() for part in rows[first:end].parts()] == [part.numpy().tolist() for part in expected]


def test_all_workers_get_a_batch_without_rows():
    share = take_part([np.float32(0.5)], 1, 2)
    assert (share.rows, share.total, share.is_stand_in, float(share.arrays[0])) == (1, 0, False, 0.5)
    assert take_part([], 0, 2).arrays == ()


@pytest.mark.parametrize(("size", "islands"), [(2, 2), (4, 2), (6, 3)])
def test_an_island_has_consecutive_rows_and_its_workers_share_them(size, islands):
    batch, ragged = np.arange(10), RaggedRows(np.arange(10), [np.arange(11)])
    shares = [take_part([batch, ragged, np.float32(2)], rank, size, islands) for rank in range(size)]
    assert np.concatenate([one.arrays[0][: one.rows] for one in shares]).tolist() == batch.tolist()
    assert np.concatenate([one.arrays[1][: one.rows] for one in shares]).tolist() == batch.tolist()
    of_island = size // islands
    for first in range(0, size, of_island):
        island = shares[first : first + of_island]
        assert {one.total for one in island} == {sum(one.rows for one in island)}


def test_an_island_without_rows_is_refused():
    with pytest.raises(SessionError, match="a batch of 1 was given for 2 islands"):
        take_part([np.arange(1)], 0, 4, 2)
    assert take_part([np.arange(2)], 1, 4, 2).rows == 1
    assert take_part([np.float32(1)], 0, 4, 2).rows == 1
