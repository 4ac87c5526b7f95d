"""The transport in memory does what the collectives' documentation says, and tells who does not come."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from ops.exactness.transport import AVERAGE, MAX, MIN, SUM, MeetingError, Meetings, in_memory, received, reduced
from parallax.transform.collectives import all_gather, all_reduce, broadcast
from parallax.transform.exchange_op import all_to_all

v1 = tf.compat.v1


def run_by_workers(size: int, build: Any, runs: int = 1) -> list[Any]:
    """What `build(rank)` gives in the last of some runs on each of some workers; an error is given in its place."""
    meetings = Meetings(size)
    found: list[Any] = [None] * size

    def work(rank: int) -> None:
        graph = tf.Graph()
        with graph.as_default():
            made = tf.nest.map_structure(lambda tensor: tensor.name, build(rank))
        graph_def = graph.as_graph_def()
        kept = in_memory(graph_def, rank, meetings)
        imported = tf.Graph()
        with imported.as_default():
            tf.graph_util.import_graph_def(graph_def, name="")
        config = v1.ConfigProto()
        config.session_inter_op_thread_pool.add(num_threads=32, global_name="transport")
        try:
            with v1.Session(graph=imported, config=config) as session:
                for _ in range(runs):
                    found[rank] = session.run(made)
                    meetings.has_run(rank)
        except tf.errors.OpError as error:
            found[rank] = error
        assert kept is not None

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.parametrize(
    ("kind", "expected"), [(SUM, [6.0, 3.0]), (AVERAGE, [2.0, 1.0]), (MIN, [1.0, -1.0]), (MAX, [3.0, 2.0])]
)
def test_parts_are_reduced_by_element(kind: int, expected: list[float]) -> None:
    parts = [np.array(part, np.float32) for part in ([1, 2], [2, 2], [3, -1])]
    assert reduced(parts, kind).tolist() == expected


def test_parts_are_scaled_before_and_after() -> None:
    assert reduced([np.float64(3), np.float64(6)], SUM, 1 / 3, 2.0).item() == pytest.approx(6)


def test_parts_of_other_shapes_are_refused() -> None:
    with pytest.raises(MeetingError, match="one shape"):
        reduced([np.zeros(2), np.zeros(3)], SUM)


def test_rows_go_where_the_splits_say() -> None:
    parts = [(np.array([10, 11, 12]), np.array([1, 2])), (np.array([20, 21]), np.array([2, 0]))]
    assert [received(parts, rank)[0].tolist() for rank in (0, 1)] == [[10, 20, 21], [11, 12]]
    assert [received(parts, rank)[1].tolist() for rank in (0, 1)] == [[1, 2], [2, 0]]


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
def test_the_mean_of_three_workers_is_as_exact_as_its_type(dtype: Any) -> None:
    found = run_by_workers(3, lambda rank: all_reduce(tf.constant([1.0 + rank, 0.1], dtype), scale=1 / 3))
    for values in found:
        assert values == pytest.approx([2.0, 0.1], rel=4 * float(np.finfo(dtype.as_numpy_dtype).eps))


def test_collectives_of_a_graph_meet_in_every_run() -> None:
    def build(rank: int) -> dict[str, Any]:
        counts = v1.placeholder_with_default(tf.constant([1, 1], tf.int32), [2])
        rows = v1.placeholder_with_default(tf.constant([[10.0 * rank], [10.0 * rank + 1]]), [2, 1])
        exchanged, arrived = all_to_all(rows, counts)
        back, _ = all_to_all(exchanged, counts, arriving=arrived)
        return {
            "least": all_reduce(tf.constant(rank), "min"),
            "any": all_reduce(tf.constant(rank == 1), "max"),
            "gathered": all_gather(tf.range(rank + 1)),
            "of worker 0": broadcast(tf.constant(5 + rank)),
            "exchanged": exchanged,
            "back": back,
        }

    first, second = run_by_workers(2, build, runs=3)
    for found in (first, second):
        assert (found["least"], bool(found["any"]), found["of worker 0"]) == (0, True, 5)
        assert found["gathered"].tolist() == [0, 0, 1]
    assert first["exchanged"].tolist() == [[0.0], [10.0]]
    assert second["exchanged"].tolist() == [[1.0], [11.0]]
    assert (first["back"].tolist(), second["back"].tolist()) == ([[0.0], [1.0]], [[10.0], [11.0]])


def test_a_worker_that_ends_its_run_without_a_collective_is_named() -> None:
    def build(rank: int) -> Any:
        return tf.constant(1) if rank == 1 else all_reduce(tf.constant(1), "max")

    first, second = run_by_workers(2, build)
    assert second == 1
    assert "all_reduce: workers [0] wait, and workers [1] have ended the run without it" in str(first)


def test_workers_that_wait_for_each_other_at_two_places_are_named() -> None:
    meetings = Meetings(2, timeout_s=0.2)
    other = threading.Thread(target=lambda: pytest.raises(MeetingError, meetings.meet, "b", 1, None))
    other.start()
    with pytest.raises(MeetingError, match="wait elsewhere"):
        meetings.meet("a", 0, None)
    other.join()
