"""Splits a sequence into parts so that the most expensive part is as cheap as possible; exact.

The cost of a part is the sum of its members' costs, and of the costs of crossing its two ends. Among equal cuts the one
is chosen whose most expensive members of a part cost least, and of those the first.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_EQUAL = 1e-9


def cut_evenly(costs: Sequence[float], crossing: Sequence[float], parts: int) -> tuple[int, ...]:
    """The end of each part but the last: the number of members before it.

    Args:
        costs: of each member.
        crossing: of an end after that many members; one more entry than members, and zero at both ends of the sequence.
        parts: at most the number of members.
    """
    count = len(costs)
    total = np.concatenate([[0.0], np.cumsum(np.asarray(costs, float))])
    ends = np.asarray(crossing, float)
    least, _ = _search(total, ends, parts, np.inf)
    _, begins = _search(total, ends, parts, least * (1 + _EQUAL))
    cut_ends, end = [], count
    for part in range(parts - 1, 0, -1):
        end = int(begins[part, end])
        cut_ends.append(end)
    return tuple(reversed(cut_ends))


def _search(
    total: NDArray[np.float64], ends: NDArray[np.float64], parts: int, most: float
) -> tuple[float, NDArray[np.int64]]:
    """The cost of the best cut, and where a part begins that ends at a place.

    Args:
        total: of all members before each place.
        ends: the costs of crossing each place.
        parts: how many.
        most: the limit of a part's cost; if finite, only the costs of members are minimized.
    """
    count = len(total) - 1
    best = np.full(count + 1, np.inf)
    best[0] = 0.0
    begins = np.zeros((parts, count + 1), np.int64)
    for part in range(parts):
        before, best = best, np.full(count + 1, np.inf)
        for end in range(part + 1, count + 1):
            members = total[end] - total[:end]
            costs = members + ends[:end] + ends[end]
            dearest = np.maximum(before[:end], costs if most == np.inf else np.where(costs <= most, members, np.inf))
            begins[part, end] = int(dearest.argmin())
            best[end] = dearest[begins[part, end]]
    return float(best[count]), begins
