"""Patterns of owners, and rows touched by several workers."""

from __future__ import annotations

import pytest

from parallax.analysis.routes.candidates import rows_by_owner
from parallax.analysis.routes.count_touched import TouchedRowCount
from parallax.analysis.routes.owners import MOST_SLOTS, Shares, all_slots, equal_shares, kinds_of, shares_of
from parallax.plans.plan import Layout
from tests.analysis.measured import MB, cluster, host
from tests.analysis.specs import sparse


@pytest.mark.parametrize("slots", [(8, 8, 8, 1), (3, 1), (5, 0, 2), (8, 7, 6, 5, 4)])
def test_rows_of_a_pattern_are_spread_evenly(slots: tuple[int, ...]) -> None:
    pattern = Shares(slots).pattern
    assert [pattern.count(worker) for worker in range(len(slots))] == list(slots)
    for length in range(1, len(pattern) + 1):
        for worker, share in enumerate(Shares(slots).by_worker):
            assert abs(pattern[:length].count(worker) - share * length) <= 1


def test_equal_shares_have_no_pattern() -> None:
    assert equal_shares(3).pattern == ()
    assert rows_by_owner(sparse(shape=(10, 4)), equal_shares(3).ownership) == (4, 3, 3)


@pytest.mark.parametrize("rows", [1, 7, 24, 100])
def test_every_row_has_the_owner_that_the_pattern_names(rows: int) -> None:
    shares = Shares((3, 3, 1))
    owned = rows_by_owner(sparse(shape=(rows, 4)), shares.ownership)
    owners = [shares.pattern[row % len(shares.pattern)] for row in range(rows)]
    assert owned == tuple(owners.count(worker) for worker in range(3))


def test_patterns_of_two_kinds_of_hosts_are_all_different_and_short() -> None:
    layout = Layout((1, 2, 0, 1))
    hosts = cluster(host(0), host(1, 24.5 * MB), host(2, MB), host(3, 5 * MB))
    kinds = kinds_of(layout, hosts)
    assert kinds.of_host == (0, 0, None, 1)
    found = list(all_slots(kinds))
    assert found[0] == (1, 1) and (1, 0) in found and len(found) == len(set(found))
    assert all(max(slots) <= MOST_SLOTS for slots in found)
    assert shares_of(layout, kinds, (4, 2)).slots == (2, 2, 2, 1)


def test_rows_of_several_workers_follow_what_was_measured() -> None:
    rows = TouchedRowCount(1000, 100.0, 200.0, ((1, 100.0), (2, 150.0), (4, 200.0)))
    assert [rows.of(k) for k in (0, 1, 2, 3, 4, 8)] == [0.0, 100.0, 150.0, 175.0, 200.0, 300.0]
    assert TouchedRowCount(250, 100.0, 200.0).of(4) == 250.0
    assert [rows.scaled_to(50.0).of(k) for k in (1, 2)] == [50.0, 75.0]
