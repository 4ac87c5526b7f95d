"""The ops by which workers exchange rows, in one process."""

import numpy as np
import pytest
import tensorflow as tf

from parallax.graph.ownership import Ownership
from parallax.transform.building.all_to_all import LookupIds, all_to_all, prepare_hop

v1 = tf.compat.v1


def run(build):
    with tf.Graph().as_default(), v1.Session() as session:
        return session.run(build())


@pytest.mark.parametrize("key_type", [tf.int32, tf.int64])
def test_keys_are_merged_and_ordered_by_where_they_go(key_type):
    first, second = np.array([3, 3, 8, 1], np.int32), np.array([0, 4, 0], np.int64)

    def build():
        wanted = [LookupIds(tf.constant(first), "a", 9, 0), LookupIds(tf.constant(second), "b", 5, 12)]
        made = prepare_hop(wanted, (0, 1, 0), 2, key_type)  # key k goes to (0, 1, 0)[k % 3]
        return made.keys, made.splits, made.positions

    keys, splits, positions = run(build)
    assert keys.tolist() == [3, 8, 12, 1, 16] and keys.dtype == key_type.as_numpy_dtype
    assert splits.tolist() == [3, 2]
    np.testing.assert_array_equal(keys[positions], [*first, *(second + 12)])


def test_many_keys_are_those_of_numpy():
    ids = np.random.default_rng(1).integers(0, 5000, 20_000)

    def build():
        made = prepare_hop([LookupIds(tf.constant(ids))], range(7), 7, tf.int64)
        return made.keys, made.splits, made.positions

    keys, splits, positions = run(build)
    np.testing.assert_array_equal(np.sort(keys), np.unique(ids))
    np.testing.assert_array_equal(np.repeat(np.arange(7), splits), keys % 7)
    np.testing.assert_array_equal(keys[positions], ids)


@pytest.mark.parametrize("key_type", [tf.int32, tf.int64])
@pytest.mark.parametrize("pattern", [(0, 1, 2), (2, 0, 0, 2, 1, 2, 0), (2, 0)])
def test_a_leg_to_owners_tells_each_its_local_rows(pattern, key_type):
    ids = np.random.default_rng(2).integers(0, 1000, 2000)
    ownership = Ownership(pattern, 3)

    def build(to_owners=True):
        made = prepare_hop([LookupIds(tf.constant(ids))], pattern, 3, key_type, to_owners)
        return made.keys, made.splits, made.local

    keys, splits, local = run(build)
    assert np.repeat(np.arange(3), splits).tolist() == [ownership.holder(key) for key in keys]
    assert local.tolist() == [ownership.local_row(key) for key in keys] and local.dtype == keys.dtype
    assert run(lambda: build(to_owners=False))[2].size == 0


def test_keys_beyond_32_bits_are_numbered_right():
    ids = np.array([2**40 + 5, 2**33, 7], np.int64)
    ownership = Ownership((0, 1, 0), 2)

    def build():
        made = prepare_hop([LookupIds(tf.constant(ids))], ownership.pattern, 2, tf.int64, to_owners=True)
        return made.keys, made.local

    keys, local = run(build)
    assert local.tolist() == [ownership.local_row(int(key)) for key in keys]


def test_no_ids_are_no_keys():
    def build():
        made = prepare_hop([LookupIds(tf.zeros([0], tf.int32))], range(2), 2, tf.int32)
        return made.keys, made.splits

    keys, splits = run(build)
    assert keys.size == 0 and splits.tolist() == [0, 0]


@pytest.mark.parametrize("outside", [-1, 5])
def test_an_id_that_is_no_row_ends_the_run_and_is_named(outside):
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=rf"emb has rows 0 to 4, and was asked for\] \[{outside}\]"
    ):
        run(lambda: prepare_hop([LookupIds(tf.constant([1, outside]), "emb", 5)], range(2), 2, tf.int32).keys)


def test_ids_below_zero_are_counted_from_the_end_where_a_lookup_says_so():
    def build(ids=(-1, 4, -5, 0)):
        wanted = [LookupIds(tf.constant(ids), "emb", 5, 0, True), LookupIds(tf.constant([2, 3]), "other", 9, 6)]
        made = prepare_hop(wanted, range(2), 2, tf.int32)
        return tf.gather(made.keys, made.positions)

    assert run(build).tolist() == [4, 4, 0, 0, 8, 9]
    for outside in (-6, 5):
        with pytest.raises(tf.errors.InvalidArgumentError, match=rf"asked for\] \[{outside}\]"):
            run(lambda outside=outside: build((1, -2, outside)))


def test_an_exchange_without_a_communicator_says_so():
    with pytest.raises(tf.errors.FailedPreconditionError, match="no communicator: open the session by parallel_run"):
        run(lambda: all_to_all(tf.zeros([2, 3]), tf.constant([1, 1]))[0])
