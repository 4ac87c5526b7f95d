"""A worker's rows of a batch: those of all workers, in order, are the batch."""

import numpy as np
import pytest
import tensorflow as tf

from parallax.functions.shares import share_of


@pytest.mark.parametrize("size", [1, 2, 3, 9])
def test_shares_of_all_workers_are_the_batch(size):
    ids, texts = np.arange(14).reshape(7, 2), np.array([b"a", b"b", b"c", b"d", b"e", b"f", b"g"])
    batch = ({"ids": tf.constant(ids), "texts": tf.constant(texts)}, None)
    shares = [share_of(batch, rank, size) for rank in range(size)]
    assert np.concatenate([share[0] for share in shares]).tolist() == ids.tolist()
    assert np.concatenate([share[1] for share in shares]).tolist() == texts.tolist()


def test_a_share_of_ragged_rows_has_their_values_and_where_they_end():
    batch = tf.ragged.constant([[1], [2, 3], [], [4]])
    assert [part.tolist() for part in share_of(batch, 1, 2)] == [[4], [0, 0, 1]]
