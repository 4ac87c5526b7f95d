"""Time intervals: the union of several, and the overlap between sets of them."""

from __future__ import annotations

from collections.abc import Iterable

Interval = tuple[float, float]
"""Begin and end, in any unit of time."""


def union(intervals: Iterable[Interval], gap: float = 0.0) -> list[Interval]:
    """The union of intervals, with gaps up to `gap` closed; empty ones are left out."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if end <= start:
            continue
        if merged and start <= merged[-1][1] + gap:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def length(intervals: Iterable[Interval]) -> float:
    """The total length of intervals, with overlaps counted once."""
    return sum(end - start for start, end in union(intervals))


def measure_overlap(some: Iterable[Interval], others: Iterable[Interval]) -> float:
    """The length of the overlap of two sets of intervals."""
    some, others = list(some), list(others)
    return length(some) + length(others) - length([*some, *others])


def shares(intervals: Iterable[tuple[str, float, float]]) -> dict[str, float]:
    """Time by name, where a moment covered by n intervals gives each of them 1/n of it: the sum is the union's length.

    Args:
        intervals: (name, begin, end); a name may occur several times.
    """
    marks = [(at, by, name) for name, start, end in intervals for at, by in ((start, 1), (end, -1)) if end > start]
    share_by_name: dict[str, float] = {}
    passing: dict[str, int] = {}
    distributed_s = before = 0.0  # the time given so far to an interval that covers everything
    taken_at: dict[str, float] = {}
    number = 0
    for at, by, name in sorted(marks, key=lambda mark: (mark[0], mark[1], mark[2])):
        distributed_s += (at - before) / number if number else 0.0
        # A name with n open intervals gets n parts of the time.
        share_by_name[name] = share_by_name.get(name, 0.0) + passing.get(name, 0) * (
            distributed_s - taken_at.get(name, 0.0)
        )
        taken_at[name] = distributed_s
        passing[name] = passing.get(name, 0) + by
        before, number = at, number + by
    return share_by_name
