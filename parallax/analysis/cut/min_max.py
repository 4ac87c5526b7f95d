"""The cut of a sequence into parts of which the dearest is as cheap as can be; exact.

A part costs what its members do, and what crosses its two ends. Of cuts that are equal the first is taken.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def cut_evenly(costs: Sequence[float], crossing: Sequence[float], parts: int) -> tuple[int, ...]:
    """Where each part but the last ends: the number of members before.

    Args:
        costs: of each member.
        crossing: of an end after so many members; one more than members, and nothing at both ends of the sequence.
        parts: at most as many as members.
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
