"""The cut of a sequence is the best of all, and says so for sequences that are easy to see through."""

import itertools
import random

import pytest

from parallax.analysis.cut.min_max import cut_evenly
from parallax.plans.model_stages import idle_share


def dearest(costs, crossing, ends):
    bounds = [0, *ends, len(costs)]
    pairs = itertools.pairwise(bounds)
    return max(sum(costs[a:b]) + crossing[a] + crossing[b] for a, b in pairs)


def cheapest_of_all(costs, crossing, parts):
    cuts = itertools.combinations(range(1, len(costs)), parts - 1)
    return min(dearest(costs, crossing, ends) for ends in cuts)


@pytest.mark.parametrize("seed", range(40))
def test_equals_brute_force(seed):
    draw = random.Random(seed)
    count = draw.randint(1, 12)
    costs = [draw.choice((0.0, 1.0, draw.random(), 10 * draw.random())) for _ in range(count)]
    crossing = [0.0, *(draw.choice((0.0, 3 * draw.random())) for _ in range(count - 1)), 0.0]
    for parts in range(1, count + 1):
        ends = cut_evenly(costs, crossing, parts)
        assert list(ends) == sorted(set(ends)) and len(ends) == parts - 1
        assert dearest(costs, crossing, ends) == pytest.approx(cheapest_of_all(costs, crossing, parts))


def test_equal_members_make_equal_parts():
    assert cut_evenly([1.0] * 12, [0.0] * 13, 4) == (3, 6, 9)


def test_avoids_a_wide_edge():
    assert cut_evenly([1.0] * 4, [0.0, 0.0, 5.0, 0.0, 0.0], 2) in ((1,), (3,))


def test_idle_share():
    assert idle_share(4, 1) == 0.75
    assert idle_share(4, 12) == pytest.approx(0.2)
    assert idle_share(1, 8) == 0.0
