"""Iterators of datasets that are begun where a job was: by as many workers, and by others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from parallax.analysis.graph_to_plan import AnalysedGraph, analyse, rewrites_of
from parallax.analysis.planner import make_plan
from parallax.analysis.reading.construction import record
from parallax.graph import shard
from parallax.plans.plan import PlanConstraints, one_host
from parallax.transform.building.editor import Worker
from parallax.transform.passes.inputs import IteratorsOfGraph
from parallax.transform.pipeline import transform

v1 = tf.compat.v1
record.install()

EXAMPLES = 24


def own_shuffle() -> Any:
    return shard.shard(tf.data.Dataset.range(EXAMPLES).map(lambda x: x * 10)).shuffle(24).repeat(2).batch(2)


def files() -> Any:
    """Three files of eight lines each, shared by file where there are not more workers."""
    lines = tf.data.Dataset.range(3).flat_map(lambda f: tf.data.Dataset.range(f * 80, f * 80 + 80, 10))
    return shard.shard(lines).repeat(2).batch(2)


def shuffled_before() -> Any:
    dataset = tf.data.Dataset.range(EXAMPLES).map(lambda x: x * 10).shuffle(24).take(24)
    return shard.shard(dataset).batch(2)


def analysed(make: Callable[[], Any], once: bool) -> AnalysedGraph:
    graph = tf.Graph()
    with graph.as_default():
        dataset = make()
        iterator = (v1.data.make_one_shot_iterator if once else v1.data.make_initializable_iterator)(dataset)
        tf.identity(iterator.get_next(), name="batch")
        w = v1.get_variable("w", [2])
        v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(w))
    return analyse(graph)


class Opened:
    """One worker's iterator, begun at an element of the sequence of all."""

    def __init__(self, found: AnalysedGraph, worker: Worker, number: int | None = None) -> None:
        plan = make_plan(found.spec, one_host(worker.size), PlanConstraints())
        made = transform(found.captured.view, rewrites_of(found, plan), worker)
        (self.one,) = made.inputs.saved
        (self.maker,) = self.one.makers
        cut = v1.graph_util.extract_sub_graph(made.graph_def, ["batch", self.maker.op])
        graph = tf.Graph()
        with graph.as_default():
            tf.import_graph_def(cut, name="")
        self.session = v1.Session(graph=graph)
        feeds = {} if number is None else {self.maker.start: self.maker.count_skipped(number, worker.size)}
        self.session.run(self.maker.op, feeds)

    def batches(self, count: int = 1000) -> list[list[int]]:
        found: list[list[int]] = []
        try:
            while len(found) < count:
                found.append(self.session.run("batch:0").tolist())
        except tf.errors.OutOfRangeError:
            pass
        return found


def place(rank: int, size: int, shares: int | None = None) -> Worker:
    return Worker(rank, size, 7, keeps_positions=True, shares=shares)


@pytest.mark.rotates
@pytest.mark.parametrize("once", [True, False], ids=["one-shot", "initializable"])
@pytest.mark.parametrize("make", [own_shuffle, files, shuffled_before])
def test_what_workers_have_left_is_read_by_as_many_and_by_others(make: Callable[[], Any], once: bool) -> None:
    found = analysed(make, once)
    whole = [Opened(found, place(rank, 2)).batches() for rank in range(2)]
    assert whole[0] != whole[1]
    passes = 1 if make is shuffled_before else 2
    everything = sorted([x * 10 for x in range(EXAMPLES)] * passes)
    assert sorted(x for batches in whole for batch in batches for x in batch) == everything
    taken = 2
    seen = sorted(x for batches in whole for batch in batches[:taken] for x in batch)
    for rank in range(2):  # as many workers
        assert Opened(found, place(rank, 2), 2 * taken + rank).batches() == whole[rank][taken:]
    for size in (1, 3):
        rest = [Opened(found, place(rank, size, 2), 2 * taken + rank).batches() for rank in range(size)]
        assert sorted([*seen, *(x for batches in rest for batch in batches for x in batch)]) == everything
    # From three on to two again, which are not where their own shares are.
    then = [Opened(found, place(rank, 2, 2), 2 * taken + 3 + rank).batches() for rank in range(2)]
    between = [Opened(found, place(rank, 3, 2), 2 * taken + rank).batches(1) for rank in range(3)]
    assert sorted([*seen, *(x for b in (*between, *then) for batch in b for x in batch)]) == everything


def test_a_dataset_that_is_not_sharded_is_each_workers_own() -> None:
    found = analysed(lambda: tf.data.Dataset.range(EXAMPLES).shuffle(24).repeat(2), True)
    zero, one = (Opened(found, place(rank, 2)).batches() for rank in range(2))
    assert zero != one and sorted(zero) == sorted(one)
    assert Opened(found, place(1, 2), 30).batches() == one[30:]
    assert not Opened(found, place(1, 2)).maker.is_sharded


def test_iterators_of_which_it_is_not_seen_what_is_taken_are_named() -> None:
    graph = tf.Graph()
    with graph.as_default():
        iterators = [v1.data.make_one_shot_iterator(tf.data.Dataset.range(3)) for _ in range(2)]
        handle = v1.placeholder(tf.string, [])
        one = v1.data.Iterator.from_string_handle(handle, tf.int64, [])
        w = v1.get_variable("w", [2])
        loss = tf.reduce_sum(w) * tf.cast(one.get_next(), tf.float32)
        v1.train.GradientDescentOptimizer(0.1).minimize(loss)
    assert iterators
    found = analyse(graph)
    plan = make_plan(found.spec, one_host(2), PlanConstraints())
    made = transform(found.captured.view, rewrites_of(found, plan), place(0, 2))
    assert made.inputs == IteratorsOfGraph((), ("OneShotIterator", "OneShotIterator_1"))
