import pytest

from ops.bench.race.scaling import bound_per_s, families, growths, host_pairs, units_per_s
from tests.bench.races import race, ran, two_and_four_hosts


def test_the_bound_is_the_units_over_the_time_that_the_least_bytes_take():
    few, many = two_and_four_hosts()
    assert bound_per_s(few) == pytest.approx(200 / 0.010)
    assert bound_per_s(many) == pytest.approx(400 / 0.020)
    assert bound_per_s(race(2, 250_000, [], rate=0)) is None
    assert bound_per_s(race(1, 0, [])) is None


def test_growth_is_measured_against_what_the_bytes_allow():
    (growth,) = growths(two_and_four_hosts(), "parallax")
    assert growth.hosts == (2, 4)
    # 200 / 0.012 and 400 / 0.025, where the bound stays the same
    assert growth.measured == pytest.approx(16000 / 16666.67, rel=1e-5)
    assert growth.allowed == pytest.approx(1.0)
    assert growth.efficiency == pytest.approx(0.96)


def test_growth_that_the_bound_shares_is_full():
    # Twice the units with the same bytes: the bound doubles, and so does the throughput.
    pair = [race(2, 250_000, [ran("a", 0.02)]), race(4, 250_000, [ran("a", 0.02)])]
    (growth,) = growths(pair, "a")
    assert (growth.measured, growth.allowed, growth.efficiency) == (2.0, 2.0, 1.0)


def test_a_system_that_failed_has_no_throughput_and_no_growth():
    races = two_and_four_hosts()
    assert units_per_s(races[1], "tf-ps-async") is None
    assert units_per_s(races[1], "nobody") is None
    assert growths(races, "tf-ps-async") == (None,)


def test_without_a_bound_there_is_no_growth():
    assert growths([race(h, 250_000, [ran("a", 0.02)], rate=0) for h in (2, 4)], "a") == (None,)


def test_each_number_of_hosts_is_compared_with_the_next_and_the_first_with_the_last():
    assert host_pairs(1) == ()
    assert host_pairs(2) == ((0, 1),)
    assert host_pairs(3) == ((0, 1), (1, 2), (0, 2))


def test_a_family_differs_in_the_hosts_alone_and_is_sorted_by_them():
    races = [
        race(4, 1, []),
        race(8, 1, [], rate=125e6),
        race(2, 1, []),
        race(8, 1, [], model="lm"),
        race(4, 1, []),
    ]
    assert families(races) == ((2, 0), (1,), (3,), (4,))
