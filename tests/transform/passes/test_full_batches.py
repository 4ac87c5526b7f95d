"""Full batches are fed where their length is known: the same values, and no ops that find lengths out."""

import numpy as np
import pytest
import tensorflow as tf

from parallax.graph.batches import mark_batch, mark_full, mark_length
from parallax.transform.building.editor import Worker
from parallax.transform.passes.full_batches import FullBatch, add_full_batches, redirect_to_full

v1 = tf.compat.v1
RUN_TIME = {"Shape", "Size", "DynamicStitch", "StridedSlice"}


def made(worker, examples=7):
    """A graph that computes with a batch's length, with what is added for one worker of two."""
    graph = tf.Graph()
    with graph.as_default():
        batch = v1.placeholder(tf.float32, [None, 3], name="batch")
        v1.placeholder(tf.float32, [None, 3], name="other")
        mark_batch(batch, "step")
        mark_full(batch, examples)
        mark_length(v1.placeholder_with_default(np.int64(0), [], name="length"), "step")
        tf.identity(tf.reduce_sum(batch, 0) / tf.cast(tf.shape(batch * 2)[0], tf.float32), name="mean")
    graph_def = graph.as_graph_def()
    full = add_full_batches(graph_def, worker)
    changed = tf.Graph()
    with changed.as_default():
        tf.graph_util.import_graph_def(graph_def, name="")
    return changed, full


def run(graph, feeds):
    """The mean, and the types of the ops that were run for it."""
    options, found = v1.RunOptions(output_partition_graphs=True), v1.RunMetadata()
    with v1.Session(graph=graph) as session:
        mean = session.run("mean:0", feeds, options, found)
    return mean, {node.op for part in found.partition_graphs for node in part.node}


@pytest.mark.parametrize(("rank", "rows"), [(0, 3), (1, 4)])
def test_a_full_batch_gives_the_same_and_runs_without_what_finds_its_length(rank, rows):
    graph, full = made(Worker(rank, 2, 0))
    assert full == (FullBatch("batch:0", "batch/full:0", rows, "length:0", 7),)
    batch = np.random.default_rng(0).normal(size=(rows, 3)).astype(np.float32)
    anywhere, ops = run(graph, {"batch:0": batch})
    there, fewer = run(graph, redirect_to_full({"batch:0": batch, "length:0": np.int64(7)}, full))
    np.testing.assert_allclose(there, anywhere, rtol=1e-6)
    assert ops & RUN_TIME and not fewer & RUN_TIME
    shorter = batch[1:]  # the last of an epoch
    assert redirect_to_full({"batch:0": shorter, "length:0": np.int64(5)}, full) is None
    np.testing.assert_allclose(run(graph, {"batch:0": shorter})[0], shorter.mean(0), rtol=1e-6)


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16, tf.int32, tf.uint8, tf.bool, tf.string, tf.complex64])
def test_a_batch_of_any_type_can_be_waited_for_without_a_full_one(dtype):
    graph = tf.Graph()
    with graph.as_default():
        batch = v1.placeholder(dtype, [None, None, 2], name="batch")
        mark_batch(batch, "step")
        mark_full(batch, 6)
        mark_length(v1.placeholder_with_default(np.int64(0), [], name="length"), "step")
        with tf.control_dependencies([batch]):  # as constants that were folded do
            tf.identity(tf.constant(5.0), name="constant")
    graph_def = graph.as_graph_def()
    (full,) = add_full_batches(graph_def, Worker(0, 2, 0))
    changed = tf.Graph()
    with changed.as_default():
        tf.graph_util.import_graph_def(graph_def, name="")
        given = tf.zeros([2, 4, 2], dtype) if dtype != tf.string else tf.fill([2, 4, 2], "a")
        tf.identity(given, name="given")
    with v1.Session(graph=changed) as session:
        value = session.run("given:0")
        assert session.run("constant:0", {"batch:0": value}) == 5.0
        assert session.run("constant:0", {full.full: np.repeat(value, 2, 0)[:3]}) == 5.0


def test_all_batches_of_a_run_are_full_or_none_is():
    full = (FullBatch("a:0", "a/full:0", 2, "n:0", 4), FullBatch("b:0", "b/full:0", 2, "n:0", 4))
    two, one, length = np.zeros([2, 3]), np.zeros([1, 3]), {"n:0": np.int64(4)}
    assert [*redirect_to_full({"a:0": two, "c:0": one, "b:0": two, **length}, full)] == [
        "a/full:0",
        "c:0",
        "b/full:0",
        "n:0",
    ]
    assert redirect_to_full({"a:0": two, "b:0": one, **length}, full) is None
    assert redirect_to_full({"a:0": two, "b:0": [[1.0], [2.0]], **length}, full) is None  # no array
    assert redirect_to_full({"a:0": two, **length}, ()) is None


def test_the_length_of_the_global_batch_decides_on_all_workers():
    (full,) = made(Worker(0, 3, 0), 11)[1]
    assert full.rows == 3
    batch = np.zeros([3, 3])  # of 10 rows, worker 0 has as many
    assert redirect_to_full({"batch:0": batch, "length:0": np.int64(11)}, (full,))
    assert redirect_to_full({"batch:0": batch, "length:0": np.int64(10)}, (full,)) is None
    assert redirect_to_full({"batch:0": batch}, (full,)) is None
    assert not any(made(Worker(rank, 3, 0), 2)[1] for rank in range(3))  # one has none


@pytest.mark.parametrize("examples", [0, 1])
def test_a_worker_without_rows_or_a_graph_that_does_not_say_has_none(examples):
    assert made(Worker(0, 2, 0), examples)[1] == ()


def test_the_full_batch_of_an_island_is_its_share():
    workers = [Worker(rank, 2, 0, island=island, islands=2) for island in range(2) for rank in range(2)]
    found = [made(worker)[1] for worker in workers]
    assert [(one.rows, one.total) for (one,) in found] == [(1, 3), (2, 3), (2, 4), (2, 4)]
