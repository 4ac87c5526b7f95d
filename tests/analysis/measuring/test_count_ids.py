"""Counting what steps touch, against sets and loops; no TensorFlow."""

import numpy as np
import pytest

from parallax.analysis.measuring.count_ids import group_sizes, merge_lookups, table_profile


def brute(first_rows, batches):
    """The same numbers the slow way: `batches[step][worker]` are lists of rows."""
    workers, steps = len(batches[0]), len(batches)
    joined = []
    for k in [k for k in range(1, workers + 1) if k == workers or k & (k - 1) == 0]:
        sizes = [
            len(set().union(*(set(rows) for rows in step[start : start + k])))
            for step in batches
            for start in range(0, workers, k)
            if start + k <= workers
        ]
        joined.append((k, sum(sizes) / len(sizes)))
    owned = [0] * workers
    for step in batches:
        for rows in step:
            for row in set(rows):
                first = max(begin for begin in first_rows if begin <= row)
                owned[(row - first) % workers] += 1
    ids = sum(len(rows) for step in batches for rows in step) / (workers * steps)
    share = max(owned) * workers / sum(owned) if sum(owned) else 1.0
    return ids, tuple(joined), share


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 6, 8])
@pytest.mark.parametrize("first_rows", [(0,), (0, 7, 12)])
def test_counts_are_those_of_sets_and_loops(workers, first_rows):
    draw = np.random.default_rng([workers, len(first_rows)])
    batches = [[np.minimum(draw.zipf(1.3, draw.integers(0, 9)), 17).tolist() for _ in range(workers)] for _ in range(5)]
    steps = [[merge_lookups([np.array(rows, np.int64)]) for rows in step] for step in batches]
    found = table_profile("emb", first_rows, steps)
    ids, joined, share = brute(first_rows, batches)
    assert (found.name, found.ids, found.touched_rows) == ("emb", ids, joined[0][1])
    assert found.joined_rows == joined
    assert found.busiest_share == pytest.approx(share)


def test_two_lookups_of_a_table_count_an_equal_row_once():
    asked = merge_lookups([np.array([[3, 1], [3, 5]]), np.array([5, 9])])
    assert (asked.ids, asked.rows.tolist()) == (6, [1, 3, 5, 9])


def test_two_workers_that_ask_for_the_same_rows_join_to_as_many():
    both = [merge_lookups([np.array([0, 2, 4])])] * 2
    found = table_profile("emb", (0,), [both])
    assert found.joined_rows == ((1, 3.0), (2, 3.0))
    assert found.busiest_share == 2.0, "all even rows are worker 0's"


def test_nothing_asked_for_is_balanced():
    found = table_profile("emb", (0,), [[merge_lookups([])] * 3])
    assert (found.ids, found.touched_rows, found.busiest_share) == (0.0, 0.0, 1.0)
    assert found.joined_rows == ((1, 0.0), (2, 0.0), (3, 0.0))


@pytest.mark.parametrize(
    ("workers", "sizes"), [(1, (1,)), (2, (1, 2)), (3, (1, 2, 3)), (4, (1, 2, 4)), (6, (1, 2, 4, 6))]
)
def test_groups_double_up_to_all_workers(workers, sizes):
    assert group_sizes(workers) == sizes
