"""What checkpoints say of where a job was, and which element each worker of the next start takes first."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from parallax.runtime.checkpoint import positions as kept
from parallax.runtime.checkpoint.format.bundle import Bundle
from parallax.runtime.checkpoint.positions import NAMES, WORKERS, StoredPositions, read_positions
from parallax.transform.passes.inputs import Maker

v1 = tf.compat.v1
SHARED, OWN = Maker("begin", "start:0", True, False), Maker("begin", "start:0", False, False)


def stored(numbers: list[int], shares: int = 2, begun: int = 1) -> StoredPositions:
    of_job = np.array([[0, 8, 5, shares]] * len(numbers))
    of_dataset = np.array([[3, number, begun, 0] for number in numbers])
    return StoredPositions({kept._digest("the job"): of_job, 7: of_dataset})


def test_the_positions_of_a_checkpoint_are_found_by_name(tmp_path: Any) -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        job, op = np.array([[0, 12, 99, 2]] * 2), np.array([[1, 256, 3, 4], [1, 512, 5, 6]])
        of_workers = v1.get_variable(WORKERS, initializer=np.stack([job, op], 1))
        names = v1.get_variable(NAMES, initializer=np.array([kept._digest(n) for n in ("the job", "dropout")]))
        plain = v1.get_variable("plain", [2])
        session.run(v1.global_variables_initializer())
        prefix = v1.train.Saver([of_workers, names]).save(session, str(tmp_path / "positions"))
        without = v1.train.Saver([plain]).save(session, str(tmp_path / "without"))
    found = read_positions(Bundle(prefix))
    assert found is not None and (found.consumed, found.seed, found.shares, found.workers) == (12, 99, 2, 2)
    assert found.of("dropout").tolist() == op.tolist() and found.of("another") is None
    assert read_positions(Bundle(without)) is None


@pytest.mark.parametrize(
    ("numbers", "size", "shares", "expected"),
    [
        ([8, 9], 2, 2, True),
        ([9, 10], 2, 2, False),  # each worker goes on in the other's share
        ([8, 9], 3, 2, False),
        ([9, 10, 11], 3, 2, False),
        ([9, 10, 11], 3, 3, True),
    ],
)
def test_workers_read_their_own_shares_where_each_is_in_its_own(
    numbers: list[int], size: int, shares: int, expected: bool
) -> None:
    assert stored(numbers, shares).is_in_shares(size) == expected
    assert stored(numbers, shares, begun=0).is_in_shares(size) == (size == len(numbers) == shares)


def test_other_workers_go_on_together_where_the_last_were() -> None:
    assert [kept._number("data", SHARED, [8, 9], rank, 3) for rank in range(3)] == [(8, ""), (9, ""), (10, "")]
    assert [kept._number("data", SHARED, [8, 13], rank, 2) for rank in range(2)] == [(8, ""), (13, "")]
    number, note = kept._number("data", SHARED, [8, 13], 0, 1)
    assert number == 8 and "some are repeated" in note
    assert kept._number("data", OWN, [4, 6], 1, 3)[0] == 6
    number, note = kept._number("data", OWN, [4, 6], 2, 3)
    assert number == 4 and "not sharded" in note
