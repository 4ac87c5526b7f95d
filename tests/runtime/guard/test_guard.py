"""What differs between workers is noticed while they train, and what may differ does not end a job.

One job of two workers trains the cases of program.py; the rest is tested without one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from parallax.graph.view import GraphView
from parallax.runtime.guard.difference import (
    ValueDifference,
    difference_text,
    is_rounding,
    largest_difference,
    order_text,
    unequal_runs_text,
    when_text,
)
from parallax.runtime.guard.fingerprints import fingerprint
from parallax.runtime.guard.guard import SHARE, Times, next_check
from parallax.runtime.guard.watched_variables import WatchedVariable, writers_of
from tests.warm_worker import fork_workers

v1 = tf.compat.v1
ROOT = Path(__file__).resolve().parents[3]
LAUNCH = (sys.executable, "-m", "tests.launched", "2", "-m", "tests.runtime.guard.program")
LIMIT_S = 200

pytestmark = pytest.mark.timeout(LIMIT_S + 60)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Any:
    file = tmp_path_factory.mktemp("guard") / "results.json"
    argv = [*LAUNCH, str(file)]
    done = subprocess.run(
        argv, cwd=ROOT, env=fork_workers(os.environ), capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, "\n".join((done.stdout + done.stderr).splitlines()[-30:])
    return json.loads(file.read_text())


@pytest.mark.rotates
@pytest.mark.parametrize("case", ["healthy", "evaluated by one worker alone"])
def test_workers_that_are_equal_are_compared_after_steps_1_2_4_8_and_train_on(results: Any, case: str) -> None:
    assert results[case] == [[8, [1, 2, 4, 8], ""]] * 2


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("a fed rate that is not broadcast", "'w' (float32 [3, 1]) .*ResourceApplyMomentum 'Momentum/update_w/"),
        ("a variable left out of the plan", "'w' .*: worker 0 has one value, worker 1 has another. The largest .* at "),
        ("a predicate of each worker", "'seen' (int32 []) .*: 1 on worker 0 and 0 on worker 1. .* by AssignAdd"),
        ("unequal random numbers", "'w' .*differs from the start, in its initial value: "),
        ("assigned by one worker alone", "'bias' .*Runs of 'set_bias': worker 0 made 1, worker 1 0."),
        ("exchanges in another order", "worker 1 fetched first:0, second:0 where worker 0 fetched first:0"),
    ],
)
def test_what_differs_is_noticed_on_all_workers_within_four_steps(results: Any, case: str, said: str) -> None:
    (step, _, text), other = results[case]
    assert step <= 4
    assert other[0] == step and other[2] == text
    assert _found(said, text), text


def test_a_difference_says_since_when(results: Any) -> None:
    assert "differs after step 2 (it was equal after step 1)" in results["assigned by one worker alone"][0][2]
    first = results["a variable left out of the plan"][0][2]
    assert "differs after step 1 (its initial value was equal)" in first


def _found(said: str, text: str) -> bool:
    """Whether a text has some pieces, between which `.*` stands, in their order."""
    at = 0
    for piece in said.split(".*"):
        at = text.find(piece.strip(), at)
        if at < 0:
            return False
    return True


def test_steps_double_and_then_have_a_period() -> None:
    free = Times(spent_s=0.0, elapsed_s=100.0, step_s=1.0)
    assert [next_check(step, free) for step in (1, 2, 4, 8, 16, 32, 1000)] == [2, 4, 8, 16, 32, 62, 1030]


def test_comparisons_wait_until_their_share_is_small_but_for_the_first() -> None:
    dear = Times(spent_s=0.3, elapsed_s=10.0, step_s=0.5)
    assert next_check(4, dear) == 8
    step = next_check(8, dear)
    assert dear.spent_s / (dear.elapsed_s + (step - 8) * dear.step_s) <= SHARE
    assert dear.spent_s / (dear.elapsed_s + (step - 9) * dear.step_s) > SHARE


class _Two:
    """A communicator of two threads."""

    def __init__(self) -> None:
        self._barrier = threading.Barrier(2, timeout=60)
        self._given: list[Any] = [None, None]
        self._rank = threading.local()

    def as_rank(self, rank: int) -> None:
        self._rank.number = rank

    def Get_rank(self) -> int:  # noqa: N802
        return int(self._rank.number)

    def allgather(self, value: Any) -> list[Any]:
        self._given[self.Get_rank()] = value
        self._barrier.wait()
        found = list(self._given)
        self._barrier.wait()
        return found

    def bcast(self, value: Any) -> Any:
        return self.allgather(value)[0]

    def Bcast(self, array: Any) -> None:  # noqa: N802
        array[:] = self.allgather(array.copy())[0]


def differences(*values: Any) -> list[ValueDifference | None]:
    """What two workers find who hold these values, each in pieces by row."""
    comm, found = _Two(), [None, None]

    def look(rank: int) -> None:
        comm.as_rank(rank)
        found[rank] = largest_difference(comm, iter([np.asarray(piece) for piece in values[rank]]))

    threads = [threading.Thread(target=look, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_the_largest_difference_is_found_in_pieces_of_any_type() -> None:
    rows = np.zeros([2, 3], np.float32)
    changed = rows.copy()
    changed[1, 2] = -0.5
    assert differences([rows, rows], [rows, changed]) == [None, ValueDifference(0.5, (3, 2), "-0.5", "0.0", 0.0)]
    assert differences([np.int64(3)], [np.int64(7)])[1] == ValueDifference(4.0, (), "7", "3", 3.0)
    assert differences([[True, False]], [[True, True]])[1] == ValueDifference(np.inf, (1,), "True", "False", 0.0)
    half = np.asarray([1.0, 2.0], tf.bfloat16.as_numpy_dtype)
    assert differences([half], [half + half])[1] == ValueDifference(2.0, (1,), "4.0", "2.0", 2.0)
    words = [np.asarray([b"a"], object), np.asarray([b"b"], object)]
    assert differences([words[0]], [words[1]])[1] == ValueDifference(np.inf, (0,), "b'b'", "b'a'", 0.0)
    assert differences([rows], [rows[:1]])[1] is not None


def test_two_zeros_are_equal_and_so_are_two_that_are_no_numbers() -> None:
    none = np.asarray([0x7FC00000, 0xFFC00001], np.uint32).view(np.float32)
    assert differences([np.stack([0.0, none[0]])], [np.stack([-0.0, none[1]])]) == [None, None]
    assert differences([none[:1]], [np.ones([1], np.float32)])[1] == ValueDifference(np.inf, (0,), "1.0", "nan", 0.0)


def test_other_processors_may_round_otherwise_but_not_count_otherwise() -> None:
    ulp = ValueDifference(2.0**-22, (0,), "", "", 1.0)
    assert is_rounding(ulp, "float32", 1)
    assert not is_rounding(ulp, "float64", 1)
    assert not is_rounding(ulp, "int32", 1)
    assert not is_rounding(ValueDifference(1e-3, (0,), "", "", 1.0), "float32", 4)


def test_what_is_written_by_row_is_fingerprinted_in_pieces() -> None:
    one = WatchedVariable("w", "float32", (10, 4), True, (), by_row=True)
    with tf.Graph().as_default() as graph, v1.Session() as session:
        made = [v1.get_variable(name, [10, 4], use_resource=True) for name in "wv"]
        same = v1.assign(made[1], made[0])
        other = v1.scatter_add(made[1], [9], [[0.0, 0.0, 0.0, 1e-3]])
        prints = [fingerprint(graph.get_operation_by_name(name), one, chunk_bytes=64) for name in "wv"]
        assert [len(one.pieces) for one in prints] == [3, 3]
        assert not session.run(prints[0].is_there)
        session.run([v.initializer for v in made])
        session.run(same)
        assert session.run(prints[0].digest) == session.run(prints[1].digest)
        session.run(other)
        assert session.run(prints[0].digest) != session.run(prints[1].digest)
        assert np.concatenate(session.run(prints[0].pieces)).shape == (10, 4)


@pytest.mark.parametrize("resource", [False, True])
def test_writers_are_found_behind_branches_and_references(resource: bool) -> None:
    with tf.Graph().as_default() as graph:
        v = v1.get_variable("v", [2], use_resource=resource)
        added = v1.assign_add(v, [1.0, 1.0])
        v1.assign(v if resource else added, [0.0, 0.0])
        v1.scatter_sub(v, [0], [1.0])
        tf.reduce_sum(v)
        if resource:
            tf.cond(v1.placeholder(tf.bool, []), lambda: v.assign_sub([1.0, 1.0], read_value=False), tf.no_op)
    view = GraphView(graph.as_graph_def(add_shapes=True))
    found = sorted(view.op(node) for node in writers_of(view, "v"))
    if resource:
        writes = ["AssignAddVariableOp", "AssignVariableOp", "AssignVariableOp", "If", "ResourceScatterSub"]
        assert found == writes
    else:
        assert found == ["Assign", "Assign", "AssignAdd", "ScatterSub"]


def test_the_first_run_that_differs_is_named() -> None:
    same, norm, table = ("train", "a"), ("train, norm", "b"), ("emb:0", "c")
    text = order_text([(same, same, norm), (same, same, norm), (same, table, same)], 5)
    assert "up to step 5 worker 2 fetched emb:0 where worker 0 fetched train." in text


def test_the_message_says_who_has_which_value_and_who_ran_what() -> None:
    one = WatchedVariable("w", "float32", (2,), True, ("set_w",), by_row=False)
    largest = [None, ValueDifference(0.5, (1,), "1.5", "1.0", 2.0), None]
    unequal = unequal_runs_text([{"set_w": 3}, {"set_w": 2}, {"set_w": 3}])
    text = difference_text(one, when_text(4, 2, False), [7, 8, 7], largest, [("Assign", "set_w")], unequal, ["m", "v"])
    assert text.startswith(
        "Variable 'w' (float32 [2]) must be equal on all workers, but differs after step 4 (it was equal after step "
        "2): workers 0, 2 have one value, worker 1 has another. The largest difference is 0.5: 1.0 on worker 0 and 1.5 "
        "on worker 1 at [1]. It is written by Assign 'set_w'. Runs of 'set_w': worker 0 made 3, worker 1 2. Other "
        "variables differ too: 'm', 'v'. "
    )
    text = difference_text(one, when_text(0, -1, False), [7, None], [], [], "", [])
    assert "differs from the start, in its initial value: worker 0 has one value, worker 1 has none." in text
    assert unequal_runs_text([{"a": 1}, {"a": 1}]) == ""
    assert when_text(9, 8, at_end=True) == "at the end (it was equal after step 8)"
