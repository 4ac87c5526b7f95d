"""Who holds which row: every row once, local rows without gaps, and each way through the map agrees with the others."""

from __future__ import annotations

import numpy as np
import pytest

from parallax.graph.ownership import Ownership
from parallax.transform.building.fused_exchanges import requesters

OWNERSHIPS = [
    *(Ownership.even(holders) for holders in (1, 2, 3, 4, 7)),
    Ownership((0, 0, 1), 2),
    Ownership((1, 0, 0, 2, 1, 1), 3),
    Ownership((0, 2, 0, 3, 2, 0), 4),  # nothing for 1
    Ownership((1,), 3),
]
ROWS = range(15)


@pytest.mark.parametrize("ownership", OWNERSHIPS, ids=repr)
def test_every_row_is_one_local_row_of_one_holder(ownership: Ownership) -> None:
    for rows in ROWS:
        places = [(ownership.holder(row), ownership.local_row(row)) for row in range(rows)]
        dense = [(holder, n) for holder, count in enumerate(ownership.counts(rows)) for n in range(count)]
        assert sorted(places) == dense
        assert [ownership.row(*place) for place in places] == list(range(rows))


@pytest.mark.parametrize("ownership", OWNERSHIPS, ids=repr)
def test_local_rows_are_in_the_order_of_the_table(ownership: Ownership) -> None:
    for holder, count in enumerate(ownership.counts(40)):
        rows = [ownership.row(holder, local) for local in range(count)]
        assert rows == sorted(rows)


@pytest.mark.parametrize("ownership", OWNERSHIPS, ids=repr)
def test_a_range_of_rows_comes_apart_and_together_again(ownership: Ownership) -> None:
    table = np.arange(40)
    held = [[row for row in range(40) if ownership.holder(row) == holder] for holder in range(ownership.holders)]
    for first in ROWS:
        for count in ROWS:
            rows, again = table[first : first + count], np.full(count, -1)
            for holder in range(ownership.holders):
                low, high = ownership.local_range(holder, first, count)
                theirs = np.full(high - low, -1)
                for here, there in ownership.pieces(holder, first):
                    theirs[there] = rows[here]
                assert theirs.tolist() == held[holder][low:high]
                for here, there in ownership.pieces(holder, first):
                    again[here] = theirs[there]
            assert again.tolist() == rows.tolist()


def test_equal_shares_are_the_rest_and_the_quotient() -> None:
    ownership = Ownership.even(4)
    assert [(ownership.holder(r), ownership.local_row(r)) for r in range(9)] == [(r % 4, r // 4) for r in range(9)]
    assert ownership.counts(9) == (3, 2, 2, 2)
    assert Ownership((0, 1, 0, 1), 2).counts(9) == (5, 4)


def test_a_pattern_names_holders_and_nobody_else() -> None:
    for pattern in ((), (0, 2), (-1, 0)):
        with pytest.raises(ValueError, match="from 0 to 1"):
            Ownership(pattern, 2)


@pytest.mark.parametrize(
    ("hosts", "host", "pattern", "expected"),
    [
        ((0, 0, 1, 1), 0, (0, 1, 2, 3), (0, 1, 0, 1)),  # whoever has the owner's place
        ((0, 0, 1, 1), 1, (0, 1, 2, 3), (0, 1, 0, 1)),
        ((0, 1, 1, 1), 0, (0, 1, 2, 3), (0, 0, 0, 0)),
        ((0, 0, 1, 1), 0, (2, 2, 2, 2), (0, 1, 0, 1)),  # one owner of all is asked by both
        ((0, 0, 1, 1), 0, (1, 1, 2, 1, 3), (1, 1, 0, 1, 0)),  # worker 1 has enough to ask itself for
        ((0, 0, 1, 1, 1, 2, 2, 2), 0, tuple(range(8)), (0, 1, 0, 1, 0, 1, 1, 0)),
    ],
)
def test_rows_of_other_hosts_are_asked_for_by_whoever_has_least_to_ask(
    hosts: tuple[int, ...], host: int, pattern: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    assert requesters(hosts, host, pattern) == expected
