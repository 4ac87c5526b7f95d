"""Splits a sequence into parts so that the most expensive part is as cheap as possible; exact.

The cost of a part is the sum of its members' costs, and of the costs of crossing its two ends. Among equal cuts the
first is chosen.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


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
    best = np.full(count + 1, np.inf)
    best[0] = 0.0
    begins = np.zeros((parts, count + 1), int)
    for part in range(parts):
        before, best = best, np.full(count + 1, np.inf)
        for end in range(part + 1, count + 1):
            dearest = np.maximum(before[:end], total[end] - total[:end] + ends[:end] + ends[end])
            begins[part, end] = int(dearest.argmin())
            best[end] = dearest[begins[part, end]]
    found, end = [], count
    for part in range(parts - 1, 0, -1):
        end = int(begins[part, end])
        found.append(end)
    return tuple(reversed(found))
