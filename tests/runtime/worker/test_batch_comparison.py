"""Workers that train on the same batches are found in the first steps, and no others."""

from __future__ import annotations

import logging
import threading
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import parallax
from parallax.analysis.reading.batches.batch_sources import batch_sources
from parallax.graph.view import GraphView
from parallax.report.logger import log
from parallax.runtime.check.command import find_unsharded_inputs
from parallax.runtime.worker.session.batch_comparison import STEPS, BatchComparison, BatchRecorder, equal_workers
from parallax.runtime.worker.session.fetches import Request

ROWS = 1000


def histories(batch, workers=2, steps=STEPS):
    """By worker; `batch` gives the arrays of a step and worker."""
    recorders = [BatchRecorder() for _ in range(workers)]
    for step in range(steps):
        for worker, recorder in enumerate(recorders):
            recorder.add(batch(step, worker))
    return [recorder.history() for recorder in recorders]


def drawn(*seed, most=ROWS, rows=32):
    return np.random.default_rng(seed).integers(0, most, rows)


@pytest.mark.parametrize(
    "batch",
    [
        lambda step, worker: [drawn(step)],
        lambda step, worker: [drawn(step), np.float32(0.1), drawn(step, most=2)[:, None]],
        lambda step, worker: [np.full([4, 3], step % 5), np.random.default_rng(step).random([4, 16])],
        lambda step, worker: [drawn(step, rows=1)],
        lambda step, worker: [np.array([f"word {one}" for one in drawn(step)], object)],
        lambda step, worker: [drawn(step % 2)],  # epochs of two batches
        lambda step, worker: [drawn(step, rows=32 - step)],
    ],
)
def test_workers_with_the_same_changing_batches_are_found(batch: Any) -> None:
    assert equal_workers(histories(batch)) == [(0, 1)]
    assert equal_workers(histories(batch, workers=3)) == [(0, 1, 2)]


def test_of_three_workers_those_two_are_found_that_have_the_same() -> None:
    found = histories(lambda step, worker: [drawn(step, worker % 2)], workers=3)
    assert equal_workers(found) == [(0, 2)]


@pytest.mark.parametrize(
    "batch",
    [
        lambda step, worker: [drawn(step, worker)],
        lambda step, worker: [drawn(7)],  # a validation batch, a constant
        lambda step, worker: [np.random.default_rng(step).permutation(64)],  # epochs of one batch, shuffled alike
        lambda step, worker: [np.float32(0.1 / (1 + step)), 3],  # a rate, a number
        lambda step, worker: [drawn(step, most=2, rows=2)],  # so few ids that equal batches say nothing
        lambda step, worker: [drawn(step, most=2, rows=64)],
        lambda step, worker: [np.full([32], step % 2)],
        lambda step, worker: [np.zeros([0, 4])],
        lambda step, worker: [],
        lambda step, worker: [drawn(step) if step < STEPS - 1 else drawn(step, worker)],
    ],
)
def test_batches_that_differ_or_may_well_be_equal_are_no_fault(batch: Any) -> None:
    assert equal_workers(histories(batch)) == []


class Exchange:
    """The all-gather of workers in threads of one process."""

    def __init__(self, workers: int) -> None:
        self.sent: list[Any] = [None] * workers

    def of(self, rank: int) -> _Workers:
        return _Workers(self, rank)


class _Workers:
    def __init__(self, exchange: Exchange, rank: int) -> None:
        self.exchange, self.rank, self.into = exchange, rank, None

    def Get_size(self) -> int:  # noqa: N802
        return len(self.exchange.sent)

    def Get_rank(self) -> int:  # noqa: N802
        return self.rank

    def Ibarrier(self) -> _Workers:  # noqa: N802
        return _Workers(self.exchange, self.rank)

    def Iallgather(self, own: Any, everyone: Any) -> _Workers:  # noqa: N802
        self.exchange.sent[self.rank], self.into = own.copy(), everyone
        return self

    def Test(self) -> bool:  # noqa: N802
        if any(one is None for one in self.exchange.sent):
            return False
        if self.into is not None:
            self.into[...] = np.stack(self.exchange.sent)
        return True


@pytest.fixture
def said():
    """What the logger says."""
    found: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    log.addHandler(handler)
    yield found
    log.removeHandler(handler)


def pipeline(kind):
    """The view of a graph that trains on what a pipeline of some kind gives, and its updates."""
    graph = tf.Graph()
    with graph.as_default():
        dataset = tf.data.Dataset.range(ROWS)
        if kind == "shuffled":
            dataset = dataset.shuffle(10)
        if kind == "shuffled by a seed":
            dataset = dataset.shuffle(10, seed=3)
        if kind == "sharded":
            dataset = parallax.shard.shard(dataset)
        if kind == "sharded by hand":
            dataset = dataset.shard(*parallax.shard.create_num_shards_and_shard_id())
        if kind == "generated":
            dataset = tf.data.Dataset.from_generator(lambda: iter(range(ROWS)), tf.int64, [])
        if kind == "fed":
            dataset = tf.data.Dataset.range(tf.placeholder(tf.int64, []))
        if kind == "mapped":
            _, number = parallax.shard.create_num_shards_and_shard_id()
            dataset = dataset.map(lambda one: one + number)
        dataset = dataset.batch(32)
        if kind == "queue":
            ids = tf.train.batch([tf.train.range_input_producer(ROWS).dequeue()], 32)
        elif kind == "python":
            ids = tf.py_func(lambda: np.arange(4), [], tf.int64)
        elif kind in ("one-shot", "sharded"):
            ids = tf.data.make_one_shot_iterator(dataset).get_next()
        elif kind == "feedable":
            made = tf.data.make_initializable_iterator(dataset)
            made.string_handle()
            handle = tf.placeholder(tf.string, [])
            ids = tf.data.Iterator.from_string_handle(handle, tf.int64, [None]).get_next()
        else:
            ids = tf.data.make_initializable_iterator(dataset).get_next()
        watched = tf.data.make_initializable_iterator(tf.data.Dataset.range(5).batch(2)).get_next()
        tf.reduce_sum(watched)  # nothing trains on it
        weights = tf.get_variable("w", [ROWS, 2], use_resource=True)
        gradient = tf.ones([1, 2]) * tf.cast(ids, tf.float32)[:, None]
        update = tf.raw_ops.ResourceScatterAdd(resource=weights.handle, indices=ids, updates=gradient)
    return GraphView(graph.as_graph_def(add_shapes=True)), frozenset([update.name])


@pytest.mark.parametrize(
    ("kind", "facts"),
    [
        ("plain", ()),
        ("one-shot", ()),
        ("feedable", ()),
        ("queue", ()),
        ("shuffled by a seed", ()),
        ("shuffled", ("shuffled",)),
        ("sharded", ("sharded",)),
        ("sharded by hand", ("sharded",)),
        ("mapped", ("sharded",)),
        ("generated", ("opaque",)),
        ("python", ("opaque",)),
        ("fed", ("opaque",)),
    ],
)
def test_what_gives_a_step_its_batches_is_found_with_whether_it_is_sharded(kind: str, facts: tuple[str, ...]) -> None:
    (found,) = batch_sources(*pipeline(kind))
    assert len(found.tensors) == 1
    assert tuple(fact for fact in ("sharded", "opaque", "shuffled") if getattr(found, f"is_{fact}")) == facts


def trained(kind, values, feeds=lambda step, worker: {}, workers=2, steps=STEPS + 2, width_reads=()):
    """What comparisons of workers do in some steps: what they fetched."""
    view, updates = pipeline(kind)
    exchange = Exchange(workers)
    made = [
        BatchComparison(
            view,
            updates,
            lambda names: set(names) <= updates,
            lambda op: "train.py:7",
            exchange.of(rank),
            width_reads,
        )
        for rank in range(workers)
    ]
    fetched = []
    for step in range(steps):
        for rank, one in enumerate(made):
            request = Request(None, tuple(updates), feeds(step, rank))
            asked = one.with_sources(request).names
            fetched.append(asked[1:])
            one.after_run(request.names, request.feeds, [None, *(values(step, rank) for _ in asked[1:])])
            evaluated = Request(None, ("Sum:0",), {})
            assert one.with_sources(evaluated) == evaluated
            one.after_run(evaluated.names, {}, [1.0])
    threads = [threading.Thread(target=one.finish) for one in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return fetched


def test_a_dataset_that_is_not_sharded_is_warned_of_once_with_the_remedy(said: list[str]) -> None:
    fetched = trained("plain", lambda step, worker: drawn(step))
    (text,) = said
    assert text.startswith("Workers 0-1 train on the same batches: IteratorGetNext 'IteratorGetNext' (train.py:7) gave")
    assert "parallax.shard.shard(dataset)" in text
    assert [len(one) for one in fetched] == [1] * 2 * STEPS + [0] * 4  # afterwards nothing is fetched besides


@pytest.mark.parametrize("kind", ["plain", "one-shot", "queue", "shuffled", "generated", "python"])
def test_a_short_job_is_warned_at_its_end_and_one_with_batches_of_its_own_never(kind: str, said: list[str]) -> None:
    trained(kind, lambda step, worker: drawn(step, worker))
    assert said == []
    trained(kind, lambda step, worker: drawn(step), steps=3)
    assert len(said) == 1 and "the first 3 steps" in said[0]


def test_a_sharded_dataset_is_not_fetched_and_speaks_for_what_is_fed_with_it(said: list[str]) -> None:
    fetched = trained("sharded", lambda step, worker: drawn(step), lambda step, worker: {"w:0": drawn(step)})
    assert said == [] and set(fetched) == {()}


def test_the_same_feeds_are_warned_of_and_what_no_update_needs_does_not_count(said: list[str]) -> None:
    trained("plain", lambda step, worker: drawn(1), lambda step, worker: {"w:0": drawn(step), "Sum:0": drawn(worker)})
    (text,) = said
    assert "they fed the same values in each of the first 8 steps" in text and "worker_id" in text
    said.clear()
    trained("plain", lambda step, worker: drawn(step, worker), lambda step, worker: {"w:0": drawn(step)})
    assert said == []  # a schedule beside batches that differ


@pytest.mark.parametrize("kind", ["plain", "sharded", "fed by the script"])
def test_batches_of_unequal_widths_are_warned_of_where_an_op_reads_the_width(kind: str, said: list[str]) -> None:
    def texts(step: int, worker: int) -> Any:
        return drawn(step, worker, rows=4 * (3 + step % 2 * worker)).reshape(4, -1)

    def train(width_reads: tuple[str, ...]) -> Any:
        if kind == "fed by the script":
            feeds = lambda step, worker: {"w:0": texts(step, worker)}  # noqa: E731
            return trained("sharded", lambda step, worker: texts(0, 0), feeds, width_reads=width_reads)
        return trained(kind, texts, width_reads=width_reads)

    train(())
    assert said == []
    train(("Sum",))
    (text,) = said
    source = "what is fed" if kind == "fed by the script" else "what IteratorGetNext 'IteratorGetNext' (train.py:7)"
    assert text.startswith("Workers train on batches of unequal widths:") and source in text, text
    assert "in step 2, and Sum 'Sum' (train.py:7) computes with the length" in text, text


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (
            "plain",
            [
                (
                    "suspicious",
                    "all workers train on the same batches. Shard the dataset before making its iterator: `dataset = ",
                )
            ],
        ),
        ("shuffled", [("suspicious", "every worker trains on all of it, each in its own order.")]),
        ("queue", [("suspicious", "create_num_shards_and_shard_id()")]),
        ("generated", [("note", "must be different on each worker")]),
        ("sharded", []),
        ("sharded by hand", []),
    ],
)
def test_a_check_says_what_of_the_input_is_not_sharded(kind: str, told: list[tuple[str, str]]) -> None:
    graph = tf.Graph()
    with graph.as_default():
        view, updates = pipeline(kind)
        tf.import_graph_def(view.graph_def, name="")
    found = find_unsharded_inputs(graph, view, updates)
    assert [kind for kind, _ in found] == [kind for kind, _ in told]
    assert all(words in text for (_, text), (_, words) in zip(found, told, strict=True)), found
