"""What the benchmark of sums says of what was measured."""

import pytest

from ops.bench.sums.results import Measured, lines_of


def measured(**seconds):
    sizes = (1000, 2000, 4000, 8000, 16000)
    rounds = {
        method: {size: [(took_s, 1.5 * size), (9 * took_s, 1.5 * size), (took_s, 1.5 * size)] for size, took_s in pairs}
        for method, own in seconds.items()
        for pairs in [list(zip(sizes, own, strict=True))]
    }
    return Measured((2, 2), 1_000_000, rounds)


def test_methods_are_chosen_by_every_other_size_and_the_others_tell_how_well():
    lines = lines_of(
        measured(
            ring=(0.004, 0.006, 0.010, 0.018, 0.034),
            halving=(0.002, 0.004, 0.008, 0.016, 0.032),
            leader=(0.001, 0.0038, 0.009, 0.018, 0.036),
        )
    )
    assert lines[0] == "### 2 hosts, 2 workers each, 8 Mbit/s"
    assert lines[4].startswith("| 1000 | 4.000 | 2.000 | 1.000 | leader | 1.5 | 1.500 | 0.25 | 0.50 |")
    assert lines[5].startswith("| 2000 | 6.000 | 4.000 | 3.800 | leader | 0.8 | 1.500 | 0.63 | 0.95 | 0.0% |")
    assert lines[7].startswith("| 8000 | 18.000 | 16.000 | 18.000 | halving | 0.8 | 1.500 | 0.89 | 1.00 | 0.0% |")
    assert lines[-2].startswith("Choice: leader up to 3,")
    assert lines[-2].endswith("halving. Without a profile: leader up to 16,384 B, slices.")
    assert lines[-1].startswith(
        "At 2 held-out sizes the choice takes 0.0% longer than the fastest (mean; at most 0.0%)"
    )


def test_the_median_round_counts():
    assert measured(ring=(1.0,) * 5, halving=(1.0,) * 5).seconds("ring", 1000) == pytest.approx(1.0)
