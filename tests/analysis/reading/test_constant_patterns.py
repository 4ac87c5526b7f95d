"""The entries of constants for a fixed batch, computed for another batch length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from parallax.analysis.reading.batches.constant_patterns import find_pattern

Make = Callable[[int], Any]
"""Batch length -> the constant that a script makes for it."""


def mask_negatives(n: int) -> Any:
    """The mask of other examples' views, as scripts of SimCLR make it."""
    mask = np.ones([n, 2 * n], bool)
    for row in range(n):
        mask[row, row] = mask[row, row + n] = False
    return mask


FOUND: dict[str, tuple[int | list[int], Make]] = {
    "zeros": (0, lambda n: np.zeros([n, 3])),
    "a row for each of two views": (0, lambda n: np.tile([[1, 7]], [2 * n, 1])),
    "labels of real and fake examples": (0, lambda n: np.concatenate([np.ones([n, 1]), np.zeros([n, 1])])),
    "numbers": (0, lambda n: np.arange(n)),
    "numbers as a column of reals": (0, lambda n: np.arange(n, dtype=np.float32)[:, None]),
    "numbers as a row": (1, lambda n: np.arange(n)[None]),
    "numbers from one": (0, lambda n: np.arange(1, n + 1)),
    "numbers of the other view": (0, lambda n: np.concatenate([np.arange(n, 2 * n), np.arange(n)])),
    "offsets of examples": (0, lambda n: 7 * np.arange(n)),
    "numbers of entries": (0, lambda n: np.arange(7 * n).reshape(n, 7)),
    "an identity": (0, lambda n: np.eye(n, dtype=np.float32)),
    "other examples": (1, lambda n: 1 - np.eye(n)),
    "the other view": (0, lambda n: np.eye(2 * n, k=n) + np.eye(2 * n, k=-n)),
    "negatives": (0, mask_negatives),
    "ones for pairs": ([0, 1], lambda n: np.ones([n, n])),
    "pairs of two views, and a width": ([0, 1], lambda n: np.full([2 * n, n, 3], -9)),
    "numbers beside each other": ([0, 1], lambda n: np.tile(np.arange(n)[:, None], [1, n])),
    "an identity of certain axes": ([0, 1], lambda n: np.eye(n)),
    "one over the length": (0, lambda n: np.full([n, 1], 1 / n)),
    "a mean of rows": ([0, 1], lambda n: np.ones([n, n]) / n),
    "a centering matrix": ([0, 1], lambda n: np.eye(n) - 1 / n),
    "a centering matrix with the other sign": (0, lambda n: 1 / n - np.eye(n)),
    "two over the length": (0, lambda n: np.full([n], 2 / n, np.float32)),
}
UNKNOWN: dict[str, Make] = {
    "weights": lambda n: np.sin(np.arange(n)),
    "numbers that fall": lambda n: np.arange(n)[::-1],
    "a part of each": lambda n: np.arange(n) / n,
    "numbers from the third on": lambda n: np.arange(2, n + 2),
    "a triangle": lambda n: np.tril(np.ones([n, n])),
    "half of a diagonal": lambda n: np.diag(np.arange(n) < n / 2).astype(float),
    "a permuted identity": lambda n: np.eye(n)[::-1],
    "weights of pairs": lambda n: (1 - np.eye(n)) / (n - 1),
    "one over one less": lambda n: np.full([n], 1 / (n - 1)),
    "the length as a real": lambda n: np.full([n], float(n)),
}


@pytest.mark.parametrize("factor", [1, 3])
@pytest.mark.parametrize("case", FOUND)
def test_entries_follow_from_the_batch_length(case: str, factor: int) -> None:
    axes, make = FOUND[case]
    pattern = find_pattern(make(7), axes if isinstance(axes, list) else [axes], 7)
    assert pattern is not None
    expected = make(7 * factor)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        found = session.run(pattern.build(tf.constant(7 * factor)))
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-6 if found.dtype == np.float32 else 1e-14)


@pytest.mark.parametrize("case", UNKNOWN)
def test_other_entries_have_no_pattern(case: str) -> None:
    assert find_pattern(UNKNOWN[case](6), [0], 6) is None


def test_two_rows_are_no_pattern_unless_they_are_equal() -> None:
    assert find_pattern(np.asarray([0, 1]), [0], 2) is None
    assert find_pattern(np.eye(2), [0], 2) is None
    assert find_pattern(np.ones([2, 2]), [0], 2) is not None


def test_a_short_number_may_be_a_label_or_one_over_the_length() -> None:
    assert find_pattern(np.full([10, 1], 0.9), [0], 10) is None
    assert find_pattern(np.full([1000, 1], 0.999), [0], 1000) is None
    for number in (0.8, 0.5, -9.0, 1e9, -1e-7):
        for length in (8, 10, 14, 64, 1000):
            pattern = find_pattern(np.full([length, 1], number), [0], length)
            assert pattern is not None and pattern.parts[0].first.per_length == 0
