"""Which increments follow which checkpoint: in order, in none, and never one that an earlier run left."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from parallax.runtime.checkpoint.format.links import (
    Followers,
    Header,
    RowsWritten,
    find_followers,
    find_strays,
    header_from,
    others,
)

W, V, A, B, C = ("0" * 31 + letter for letter in "abcde")
FIRST, SECOND, THIRD = Header(A, W, W, 1, 1), Header(B, W, A, 2, 2), Header(C, W, B, 3, 3)
CHAIN = {"i-1": FIRST, "i-2": SECOND, "i-3": THIRD}


def test_a_header_is_read_as_it_was_written() -> None:
    header = replace(THIRD, tables=(RowsWritten("emb", "rows/0", "values/0", (2,)),))
    assert header_from(header.to_text()) == header
    assert header_from(Header(W).to_text()) == Header(W)
    for text in ("", "{}", Header("w").to_text(), replace(FIRST, base="older").to_text()):
        with pytest.raises((ValueError, KeyError, TypeError)):
            header_from(text)


@pytest.mark.parametrize("order", list(itertools.permutations(CHAIN)))
def test_increments_follow_each_other_whatever_order_a_folder_has(order: tuple[str, ...]) -> None:
    assert find_followers(W, {prefix: CHAIN[prefix] for prefix in order}) == Followers(("i-1", "i-2", "i-3"))


def test_after_a_missing_increment_nothing_follows() -> None:
    assert find_followers(W, {"i-1": FIRST, "i-3": THIRD}) == Followers(
        ("i-1",), ("Skipped i-3: an increment that it follows does not exist.",)
    )
    assert find_followers(W, {"i-2": SECOND, "i-3": THIRD}).prefixes == ()


def test_increments_of_an_earlier_run_never_follow_whatever_their_step() -> None:
    older = {"i-1": FIRST, "i-2": SECOND, "i-7": THIRD}
    assert find_followers(V, older) == Followers()
    assert find_followers("", {**older, "i-8": Header(V)}) == Followers()  # a checkpoint without a header
    new = {**older, "i-1": Header(V[:-1] + "f", V, V, 1, 1)}  # of the same step, over the older one
    assert find_followers(V, new) == Followers(("i-1",))
    assert find_strays([V], new) == ["i-2", "i-7"]
    assert find_strays([V, W], new) == []


def test_of_two_that_follow_one_checkpoint_neither_does() -> None:
    fork = {**CHAIN, "i-9": Header(V, W, A, 9, 2)}
    assert find_followers(W, fork) == Followers(
        ("i-1",),
        (
            "Skipped i-2 and i-9: both follow the same checkpoint.",
            "Skipped i-3: an increment that it follows does not exist.",
        ),
    )


def test_a_job_that_goes_on_from_the_middle_leaves_no_fork() -> None:
    after_first = Header(V, W, A, 2, 2)
    assert others(after_first, CHAIN) == ["i-2", "i-3"]
    assert others(Header(V, W, W, 1, 1), CHAIN) == ["i-1", "i-2", "i-3"]
    assert others(Header(V, W, C, 4, 4), {**CHAIN, "x-1": Header(W, V, V)}) == []


def test_a_circle_of_increments_ends() -> None:
    circle = {"i-1": Header(A, W, B, 1, 1), "i-2": Header(B, W, A, 2, 2)}
    assert find_followers(W, circle).prefixes == ()
    assert others(Header(C, W, B, 3, 3), circle) == []
