"""Computes a table's touched rows per step from the ids that workers look up: pure counting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parallax.cluster.profiles import TableProfile


@dataclass(frozen=True, slots=True)
class LookedUpIds:
    """The rows of one table that one worker requests in one step.

    Attributes:
        ids: the number of ids that it looks up, with repetition.
        rows: `[u]` int64, the distinct rows among them, ascending.
    """

    ids: int
    rows: NDArray[np.int64]


def merge_lookups(pieces: Sequence[NDArray[np.int64]]) -> LookedUpIds:
    """Aggregates the row numbers of a table's lookups.

    Args:
        pieces: for each lookup the requested rows of the full table, of any shape.
    """
    flat = [np.zeros(0, np.int64), *(np.asarray(piece, np.int64).reshape(-1) for piece in pieces)]
    everything = np.concatenate(flat)
    return LookedUpIds(len(everything), np.unique(everything))


def table_profile(name: str, first_rows: Sequence[int], steps: Sequence[Sequence[LookedUpIds]]) -> TableProfile:
    """The accesses of the steps to one table.

    Rows of k workers are merged for workers 0 to k-1, k to 2k-1 and so on, as hosts have them; a rest of fewer than k
    is left out. A partitioned variable is sharded part by part: row r of a part belongs to owner r % W.

    Args:
        name: of the variable.
        first_rows: the first row of each of its parts, ascending; `(0,)` for a variable in one piece.
        steps: for each step, at least one, the requests of each worker, by rank.
    """
    workers = len(steps[0])
    union_rows = tuple(
        (k, _mean([n for step in steps for n in _count_union_rows(step, k)])) for k in group_sizes(workers)
    )
    return TableProfile(
        name=name,
        ids=_mean([one.ids for step in steps for one in step]),
        touched_rows=_mean([len(one.rows) for step in steps for one in step]),
        joined_rows=union_rows,
        busiest_share=_busiest_share([one.rows for step in steps for one in step], first_rows, workers),
    )


def group_sizes(workers: int) -> tuple[int, ...]:
    """1, 2, 4 and so on below the number of workers, and that number itself."""
    powers = [1 << n for n in range(workers.bit_length()) if 1 << n < workers]
    return (*powers, workers)


def _count_union_rows(step: Sequence[LookedUpIds], k: int) -> list[int]:
    """The number of distinct rows that each group of k workers requests."""
    starts = range(0, len(step) - k + 1, k)
    return [len(np.unique(np.concatenate([one.rows for one in step[start : start + k]]))) for start in starts]


def _busiest_share(requested_rows: Sequence[NDArray[np.int64]], first_rows: Sequence[int], owners: int) -> float:
    """The busiest owner's share of all requested rows, times the number of owners; 1 when none is requested."""
    rows = np.concatenate([np.zeros(0, np.int64), *requested_rows])
    begins = np.asarray(first_rows, np.int64)
    in_part = rows - begins[np.searchsorted(begins, rows, side="right") - 1]
    of_owner = np.bincount(in_part % owners, minlength=owners)
    return float(of_owner.max() * owners / len(rows)) if len(rows) else 1.0


def _mean(numbers: Sequence[int]) -> float:
    return float(sum(numbers)) / len(numbers)
