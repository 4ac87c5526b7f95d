"""Rows that are dealt to workers in runs: workers are threads of this process, and hold rows in every kind of turns."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from parallax.graph.ownership import Ownership
from parallax.runtime.checkpoint.format.stored_tensors import CheckpointEntry
from parallax.runtime.checkpoint.rows.redistribute_rows import run_of, send_rows, split_into_rounds
from parallax.runtime.checkpoint.rows.variable_rows import RowsOnServers, ShardedRows

WIDTH, LIMIT_S = 3, 30
ROW_BYTES = 4 * WIDTH


@dataclass
class Together:
    """What the communicators of some workers share."""

    size: int
    sent: dict[int, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.barrier = threading.Barrier(self.size, timeout=LIMIT_S)


@dataclass
class ThreadComm:
    """A communicator of one of some workers."""

    rank: int
    together: Together

    def Get_rank(self) -> int:  # noqa: N802
        return self.rank

    def Get_size(self) -> int:  # noqa: N802
        return self.together.size

    def Ibarrier(self) -> Any:  # noqa: N802
        return SimpleNamespace(Test=lambda: self.together.barrier.wait() >= 0)

    def Alltoallv(self, sent: Any, received: Any) -> None:  # noqa: N802
        buffer, sizes = sent
        self.together.sent[self.rank] = np.split(buffer, np.cumsum(sizes)[:-1]), sum(sizes) == len(buffer)
        self.together.barrier.wait()
        mine = [self.together.sent[rank][0][self.rank] for rank in range(self.together.size)]
        assert all(whole for _, whole in self.together.sent.values())
        assert [len(part) for part in mine] == received[1]
        received[0][:] = np.concatenate(mine)
        self.together.barrier.wait()


@dataclass
class LocalRows:
    """Rows that one process holds; says how many were read at once at most, and that they were read in order, once."""

    rows: Any
    most: int = 0
    at: int = 0

    def read(self, session: Any, low: int, high: int) -> Any:
        assert low == self.at
        self.most, self.at = max(self.most, high - low), high
        return self.rows[low:high]


def on_all(size: int, work: Any) -> list[Any]:
    together = Together(size)
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(lambda rank: work(rank, ThreadComm(rank, together)), range(size)))


def held_by(ownership: Ownership, whole: Any) -> list[LocalRows]:
    owners = np.array([ownership.holder(row) for row in range(len(whole))], int)
    return [LocalRows(whole[owners == holder]) for holder in range(ownership.holders)]


def dealt(rows: int, size: int, takers: Sequence[int], chunk_rows: int, variable: Any) -> dict[int, tuple[int, int]]:
    """Deals all rows of what `variable` makes for each worker; gives first row -> (number, worker) of all runs."""

    def work(rank: int, comm: Any) -> list[tuple[int, int, Any]]:
        one, found = variable(comm), []
        for first, counts in split_into_rounds(one, takers, chunk_rows * ROW_BYTES):
            values = send_rows(one, None, first, counts)
            start, count = run_of(rank, first, counts)
            assert len(values) == count and (rank in counts or not count) and count <= chunk_rows
            np.testing.assert_array_equal(values, whole_of(rows)[start : start + count])
            found += [(start, count, rank)] if rank in counts else []
        return found

    runs = {start: (count, rank) for found in on_all(size, work) for start, count, rank in found}
    at = 0
    for start in sorted(runs):  # one after the other, without a gap
        assert start == at
        at += runs[start][0]
    assert at == rows
    return runs


def whole_of(rows: int) -> Any:
    return np.arange(rows * WIDTH, dtype=np.float32).reshape(rows, WIDTH)


def stored_of(rows: int) -> CheckpointEntry:
    return CheckpointEntry("emb", "emb", tf.float32.name, tf.float32.size, (rows, WIDTH), (rows, WIDTH), (0, 0), False)


PATTERNS = [(0, 1, 2), (2, 0, 0, 2, 2, 0), (1,), (0, 1, 1, 2, 1)]


@pytest.mark.parametrize("rows", [0, 1, 7, 100])
@pytest.mark.parametrize("takers", [(0,), (0, 2), (0, 1, 2)])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_row_of_the_workers_is_taken_once_and_nobody_has_more_than_a_chunk(
    rows: int, takers: tuple[int, ...], pattern: tuple[int, ...]
) -> None:
    ownership = Ownership(pattern, 3)
    held = held_by(ownership, whole_of(rows))
    runs = dealt(rows, 3, takers, 10, lambda comm: ShardedRows(stored_of(rows), held[comm.rank], ownership, comm))
    assert {rank for _, rank in runs.values()} == (set(takers) if rows > 1 else {0})
    assert all(one.at == len(one.rows) for one in held)
    assert max(one.most for one in held) <= 10 + max(ownership.shares)


@pytest.mark.parametrize("rows", [1, 50])
@pytest.mark.parametrize("takers", [(0,), (0, 2), (0, 1, 2)])
@pytest.mark.parametrize("partitions", [1, 2, 5])
def test_rows_on_servers_are_read_once_each_by_one_worker_at_a_time(
    rows: int, takers: tuple[int, ...], partitions: int
) -> None:
    held = held_by(Ownership.even(partitions), whole_of(rows))
    runs = dealt(rows, 3, takers, 8, lambda comm: RowsOnServers(stored_of(rows), tuple(held), None, comm))
    assert {rank for _, rank in runs.values()} == (set(takers) if rows > 1 else {0})
    assert all(one.at == len(one.rows) for one in held)


def test_a_round_gives_every_worker_a_chunk_where_all_hold_equal_shares_and_little_is_not_split() -> None:
    ownership = Ownership.even(4)
    chunk_bytes = 64 * ROW_BYTES

    def of(rows: int) -> list[tuple[int, dict[int, int]]]:
        one: Any = ShardedRows(stored_of(rows), LocalRows(None), ownership, None)
        return list(split_into_rounds(one, (0, 1, 2, 3), chunk_bytes))

    assert of(512) == [(first, dict.fromkeys(range(4), 64)) for first in (0, 256)]
    assert of(4) == [(0, {0: 4})]  # a sixteenth of a chunk
    assert of(6) == [(0, {0: 2, 1: 2, 2: 1, 3: 1})]
    assert of(0) == [(0, {0: 0})]


def test_what_worker_0_asks_for_comes_to_worker_0_alone() -> None:
    ownership = Ownership((1, 0, 1), 2)
    held = held_by(ownership, whole_of(9))
    found = on_all(
        2,
        lambda rank, comm: ShardedRows(stored_of(9), held[rank], ownership, comm).read(None, 0, 8),  # type: ignore
    )
    np.testing.assert_array_equal(found[0], whole_of(9)[:8])
    assert found[1] is None
