"""Shares of datasets and parts of variables, on the graphs that the workers run; no worker is started."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tensorflow.python.eager import context

import parallax
from parallax import shard
from parallax.analysis.graph_to_plan import analyse
from parallax.transform.building.editor import Worker
from parallax.transform.passes.shard_numbers import set_shards

KINDS = ("one-shot", "initializable")


def elements(build, workers, kind="one-shot", before=lambda rank: None):
    """What each worker's iterator gives, batches joined; `build` makes the dataset in the user's graph."""
    graph = tf.Graph()
    with graph.as_default():
        tf.set_random_seed(3)
        dataset = build()
        make = tf.data.make_one_shot_iterator if kind == "one-shot" else tf.data.make_initializable_iterator
        iterator = make(dataset)
        name = iterator.get_next().name
    found = []
    for rank in range(workers):
        before(rank)
        graph_def = graph.as_graph_def()
        set_shards(graph_def, Worker(rank, workers, 1))
        with tf.Graph().as_default(), tf.Session() as sess:
            tf.import_graph_def(graph_def, name="")
            if kind == "initializable":
                sess.run(iterator.initializer.name)
            found.append([])
            try:
                while True:
                    found[-1].append(sess.run(name))
            except tf.errors.OutOfRangeError:
                pass
    return found


def flat(found):
    return [np.concatenate([np.atleast_1d(piece) for piece in mine]).tolist() for mine in found]


def counting(calls):
    """A map function that notes what it is called with."""

    def note(x):
        calls.append(int(x))
        return x

    def mapped(x):
        y = tf.py_func(note, [x], tf.int64)
        y.set_shape([])
        return y

    return mapped


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_every_element_goes_to_one_worker_and_nobody_computes_anothers(kind, workers):
    calls = []

    def build():
        numbers = tf.data.Dataset.range(11).shuffle(4).map(counting(calls))
        return shard.shard(numbers.batch(2).cache().repeat(2).prefetch(1))

    found = flat(elements(build, workers, kind))
    assert sorted(sum(found, [])) == sorted([*range(11)] * 2)
    assert all(set(found[a]).isdisjoint(found[b]) for a in range(workers) for b in range(a))
    assert sorted(calls) == list(range(11))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("parallel", [None, 2, tf.data.experimental.AUTOTUNE])
def test_a_worker_opens_its_own_files_only(kind, parallel, tmp_path):
    files = [tmp_path / f"{number}.txt" for number in range(5)]

    def write_those_of(rank):
        for number, file in enumerate(files):
            file.unlink(missing_ok=True)
            if number % 2 == rank:
                file.write_text("".join(f"{number}{line}\n" for line in range(3)))

    def build():
        lines = tf.data.TextLineDataset([str(f) for f in files], num_parallel_reads=parallel)
        return shard.shard(lines.map(tf.strings.to_number).batch(2))

    found = flat(elements(build, 2, kind, write_those_of))
    assert [sorted(mine) for mine in found] == [[0, 1, 2, 20, 21, 22, 40, 41, 42], [10, 11, 12, 30, 31, 32]]


@pytest.mark.parametrize("kind", KINDS)
def test_with_fewer_files_than_workers_lines_are_shared_before_they_are_parsed(kind, tmp_path):
    file = tmp_path / "numbers.txt"
    file.write_text("".join(f"{line}\n" for line in range(9)))
    calls = []

    def build():
        lines = tf.data.Dataset.list_files(str(tmp_path / "*.txt")).interleave(tf.data.TextLineDataset)
        numbers = lines.map(lambda line: tf.strings.to_number(line, tf.int64)).map(counting(calls))
        return shard.shard(numbers.batch(2))

    assert flat(elements(build, 2, kind)) == [[0, 2, 4, 6, 8], [1, 3, 5, 7]]
    assert sorted(calls) == list(range(9))


def test_elements_of_a_generator_are_shared():
    def build():
        return shard.shard(tf.data.Dataset.from_generator(lambda: iter(range(5)), tf.int64, []))

    assert flat(elements(build, 2)) == [[0, 2, 4], [1, 3]]


def test_a_share_is_taken_after_what_counts_elements():
    def build():
        return shard.shard(tf.data.Dataset.range(9).skip(1).take(4).map(lambda x: 10 * x))

    assert flat(elements(build, 2)) == [[10, 30], [20, 40]]


@pytest.mark.parametrize("kind", KINDS)
def test_both_parts_of_a_zip_are_shared(kind):
    calls = []

    def build():
        left = tf.data.Dataset.range(5).map(counting(calls)).prefetch(1)
        right = tf.data.Dataset.range(5).filter(lambda x: x >= 0).enumerate().map(lambda i, x: i * x)
        return shard.shard(tf.data.Dataset.zip((left, right)).map(lambda a, b: 100 * a + b).batch(2))

    assert flat(elements(build, 2, kind)) == [[0, 204, 416], [101, 309]]
    assert sorted(calls) == list(range(5))


def test_rows_of_batches_are_shared():
    def build():
        return shard.shard(tf.data.Dataset.range(6).batch(2).unbatch().map(lambda x: x))

    assert flat(elements(build, 2)) == [[0, 2, 4], [1, 3, 5]]


def test_a_cache_in_a_file_is_not_made_of_a_share(tmp_path):
    def build():
        return shard.shard(tf.data.Dataset.range(4).cache(str(tmp_path / "cache")).map(lambda x: x))

    assert flat(elements(build, 2)) == [[0, 2], [1, 3]]


@pytest.mark.parametrize("kind", KINDS)
def test_the_two_numbers_may_be_used_by_hand_and_in_functions(kind):
    def build():
        num_shards, shard_id = shard.create_num_shards_and_shard_id()
        again = shard.create_num_shards_and_shard_id()
        assert again[0] is num_shards and num_shards.dtype == shard_id.dtype == tf.int64

        def to_tens(x):
            return 10 * x + shard.create_num_shards_and_shard_id()[1]

        return tf.data.Dataset.range(7).shard(num_shards, shard_id).map(to_tens)

    assert flat(elements(build, 3, kind)) == [[0, 30, 60], [11, 41], [22, 52]]


def test_several_datasets_may_be_sharded_but_none_twice():
    def build():
        first, second = (shard.shard(tf.data.Dataset.range(n, n + 4)) for n in (0, 10))
        with pytest.raises(parallax.GraphError, match="already sharded by"):
            shard.shard(first.map(lambda x: x))
        return first.concatenate(second)

    assert flat(elements(build, 2)) == [[0, 2, 10, 12], [1, 3, 11, 13]]


def test_without_parallax_a_graph_has_one_shard():
    with tf.Graph().as_default(), tf.Session() as sess:
        assert sess.run(shard.create_num_shards_and_shard_id()) == (1, 0)


def test_methods_of_the_older_interface_stay():
    with tf.Graph().as_default():
        dataset = shard.shard(tf.data.Dataset.range(3))
        assert dataset.make_one_shot_iterator().get_next().dtype == tf.int64


def test_eager_execution_is_refused():
    with context.eager_mode(), pytest.raises(parallax.GraphError, match="executing eagerly"):
        shard.create_num_shards_and_shard_id()


def test_what_follows_from_a_workers_number_must_not_reach_shared_state():
    def build(number):
        with tf.Graph().as_default() as graph:
            x = tf.placeholder(tf.float32, [None, 2], name="x")
            w = tf.get_variable("w", [2, 1])
            loss = tf.reduce_mean(tf.square(x @ w))
            rate = 0.1 / tf.cast(1 + shard.create_num_shards_and_shard_id()[number], tf.float32)
            tf.train.GradientDescentOptimizer(rate).minimize(loss)
        return graph

    analyse(build(0))
    with pytest.raises(parallax.GraphError, match="must be equal on all workers"):
        analyse(build(1))


@pytest.mark.parametrize(("parts", "sizes"), [(1, [11]), (2, [6, 5]), (4, [3, 3, 3, 2]), (12, [1] * 11)])
def test_a_prime_number_of_rows_is_cut_evenly(parts, sizes):
    with tf.Graph().as_default(), tf.variable_scope("", partitioner=parallax.get_partitioner(parts)):
        emb = list(tf.get_variable("emb", [11, 4]))
    assert [part.shape.as_list()[0] for part in emb] == sizes


@pytest.mark.parametrize("count", [0, -1, 2.0, "2", None, True])
def test_a_number_of_parts_must_be_one(count):
    with pytest.raises(parallax.ConfigError, match="min_partitions must be an integer of at least 1"):
        parallax.get_partitioner(count)
