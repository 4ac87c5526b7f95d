"""The transport in memory does what the collectives' documentation says, and tells who does not come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from ops.exactness.transport import MeetingError, check_meetings, combine_workers, name_run_marker, of_worker
from parallax.graph.view import GraphView
from parallax.transform.building.all_to_all import all_to_all
from parallax.transform.building.collectives import all_gather, all_reduce, broadcast, open_end

v1 = tf.compat.v1


def built(build: Callable[[int], Any], rank: int) -> tuple[Any, Any]:
    """The graph of a worker, and what `build(rank)` gives, by names."""
    graph = tf.Graph()
    with graph.as_default():
        made = tf.nest.map_structure(lambda one: one.name, build(rank))
    return graph.as_graph_def(add_shapes=True), made


def run_by_workers(size: int, build: Callable[[int], Any], runs: int = 1, ops: tuple[str, ...] = ()) -> list[Any]:
    """What `build(rank)` gives in the last of some runs on each of some workers; `ops` must have run."""
    graph_defs, made = zip(*(built(build, rank) for rank in range(size)), strict=True)
    graph = tf.Graph()
    with graph.as_default():
        tf.graph_util.import_graph_def(combine_workers(graph_defs, ops), name="")
    fetches = [tf.nest.map_structure(lambda one, rank=rank: of_worker(rank, one), made[rank]) for rank in range(size)]
    with v1.Session(graph=graph) as session:
        for _ in range(runs):
            found = session.run([fetches, [name_run_marker(rank, op) for rank in range(size) for op in ops]])[0]
    return list(found)


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
def test_the_mean_of_three_workers_is_as_exact_as_its_type(dtype: Any) -> None:
    found = run_by_workers(3, lambda rank: all_reduce(tf.constant([1.0 + rank, 0.1], dtype), scale=1 / 3))
    for values in found:
        assert values == pytest.approx([2.0, 0.1], rel=4 * float(np.finfo(dtype.as_numpy_dtype).eps))


def test_the_parts_of_a_sum_are_scaled() -> None:
    def build(rank: int) -> Any:
        return all_reduce(tf.constant([4.0 * (rank + 1)]), "sum", 0.25)

    assert [values.tolist() for values in run_by_workers(2, build)] == [[3.0], [3.0]]


def test_parts_of_other_shapes_are_refused() -> None:
    def build(rank: int) -> Any:
        return all_reduce(open_end(tf.zeros([2 + rank])))

    with pytest.raises(tf.errors.InvalidArgumentError, match="Shapes of all inputs must match"):
        run_by_workers(2, build)


def test_collectives_of_a_graph_meet_in_every_run() -> None:
    def build(rank: int) -> dict[str, Any]:
        counts = open_end(tf.constant([1, 1 + rank]), [2])
        rows = open_end(tf.range(2.0 + rank)[:, None] + 10.0 * rank)
        exchanged, arrived = all_to_all(rows, counts)
        back, _ = all_to_all(exchanged, arrived, arriving=counts)
        return {
            "least": all_reduce(tf.constant(rank), "min"),
            "any": all_reduce(tf.constant(rank == 1), "max"),
            "gathered": all_gather(tf.range(rank + 1)),
            "of worker 0": broadcast(tf.constant(5 + rank)),
            "exchanged": exchanged,
            "arrived": arrived,
            "back": back,
        }

    first, second = run_by_workers(2, build, runs=3)
    for found in (first, second):
        assert (found["least"], bool(found["any"]), found["of worker 0"]) == (0, True, 5)
        assert found["gathered"].tolist() == [0, 0, 1]
    assert (first["exchanged"].tolist(), second["exchanged"].tolist()) == ([[0.0], [10.0]], [[1.0], [11.0], [12.0]])
    assert (first["arrived"].tolist(), second["arrived"].tolist()) == ([1, 1], [1, 2])
    assert (first["back"].tolist(), second["back"].tolist()) == ([[0.0], [1.0]], [[10.0], [11.0], [12.0]])


def test_rows_that_were_not_to_arrive_end_the_run() -> None:
    def build(rank: int) -> Any:
        counts = tf.constant([1, 1])
        return all_to_all(tf.range(2.0), counts, arriving=counts + rank)[1]

    with pytest.raises(tf.errors.InvalidArgumentError, match="known_1/rows_told_and_arrived"):
        run_by_workers(2, build)


def test_workers_have_variables_functions_queues_and_loop_frames_of_their_own() -> None:
    from tensorflow.python.framework import function

    def build(rank: int) -> list[Any]:
        v1.disable_control_flow_v2()
        try:
            looped = tf.while_loop(lambda i: i < 3 + rank, lambda i: i + 1, [open_end(tf.constant(0))])
        finally:
            v1.enable_control_flow_v2()

        added = function.Defun(tf.float32, func_name="added")(lambda x: x + (rank + 1))
        variable = v1.get_variable("v", [], initializer=v1.zeros_initializer(), use_resource=True)
        with tf.control_dependencies([variable.initializer]):
            counted = variable.assign_add(added(1.0 * rank))
        queue = v1.FIFOQueue(2, [tf.int32], shared_name="queue")
        with tf.control_dependencies([queue.enqueue(rank)]):
            taken = queue.dequeue()
        return [looped[0], tf.identity(counted, name="counted"), taken]

    assert run_by_workers(2, build, runs=2) == [[3, 1.0, 0], [4, 3.0, 1]]


def test_one_worker_alone_gets_what_it_gives() -> None:
    def build(rank: int) -> list[Any]:
        exchanged, arrived = all_to_all(open_end(tf.constant([[1.0], [2.0]])), open_end(tf.constant([2]), [1]))
        return [all_gather(tf.range(3)), exchanged, arrived]

    assert [value.tolist() for value in run_by_workers(1, build)[0]] == [[0, 1, 2], [[1.0], [2.0]], [2]]


def test_what_is_on_another_process_is_where_all_workers_find_it() -> None:
    def queue(process: str) -> Any:
        with tf.device(process):
            return v1.FIFOQueue(1, [tf.int32], shared_name="queue")

    def build(rank: int) -> list[Any]:
        if rank == 0:
            sent = [queue("/job:ps/task:0").enqueue(5), queue("/job:ps/task:1").enqueue(6)]
            with tf.control_dependencies([*sent, queue("/job:worker/task:1").enqueue(7)]):
                return [tf.constant(0)]
        return [queue(process).dequeue() for process in ("/job:ps/task:1", "/job:ps/task:0", "")]

    assert run_by_workers(2, build)[1] == [6, 5, 7]


def test_a_collective_that_a_run_of_one_worker_leaves_out_is_named() -> None:
    graph_def, made = built(lambda _: [all_reduce(tf.constant(1), "max"), tf.constant(1, name="other")], 0)
    views = [GraphView(graph_def)] * 2
    check_meetings(views, [made, made], [(), ()])
    with pytest.raises(MeetingError, match=r"all_reduce: workers \[0\] wait, and workers \[1\] have ended the run"):
        check_meetings(views, [made, made[1:]], [(), ()])
    with pytest.raises(MeetingError, match=r"workers \[1\] wait"):
        check_meetings(views, [made, made], [made, ()])


def test_a_collective_that_one_worker_does_not_have_is_named() -> None:
    with pytest.raises(MeetingError, match=r"all_reduce: workers \[1\] wait, and workers \[0\] have ended the graph"):
        run_by_workers(2, lambda rank: all_reduce(tf.constant(1)) if rank else tf.constant(1))


def test_an_op_behind_a_collective_of_a_branch_that_one_worker_takes_has_not_run() -> None:
    def build(rank: int) -> list[Any]:
        v1.disable_control_flow_v2()
        try:
            part = tf.cond(open_end(tf.constant(rank == 0)), lambda: all_reduce(tf.constant(1.0)), lambda: 0.0)
        finally:
            v1.enable_control_flow_v2()
        with tf.control_dependencies([part]):
            tf.no_op("train")
        return []

    with pytest.raises(tf.errors.InvalidArgumentError, match="does not have value"):
        run_by_workers(2, build, ops=("train",))
