"""What a sum sends out of a host, and by which method messages go, by how many workers each host has."""

import pytest

from parallax.plans.sum_methods import (
    ANY_BYTES,
    DOUBLING,
    HALVING,
    LEADER,
    LEADER_UP_TO_BYTES,
    METHODS,
    RING,
    RING_FROM_BYTES,
    SLICES,
    SumRule,
    SumRules,
    fastest_rules,
    method_for,
    rules_for,
    seconds_at,
    sent_out_of_host,
    stated_rules,
)


@pytest.mark.parametrize(
    ("workers_by_host", "sent"),
    [
        ((2, 2, 2, 2), (4.0, 1.75, 1.5, 2.0, 1.5)),
        ((4, 4), (4.0, 1.75, 1.0, 1.0, 1.0)),
        ((2, 2), (2.0, 1.5, 1.0, 1.0, 1.0)),
        ((2, 0, 2), (2.0, 1.5, 1.0, 1.0, 1.0)),
        ((1, 1, 1, 1), (2.0, 1.5, 1.5, 2.0, 1.5)),
        ((3, 3), (3.0, 5 / 3, 2.5, 1.0, 1.0)),
        ((1, 1, 1), (2.0, 4 / 3, 2.0, 2.0, 4 / 3)),
        ((4,), (0.0, 0.0, 0.0, 0.0, 0.0)),
    ],
)
def test_what_the_busiest_host_sends_in_parts_of_the_message(workers_by_host, sent):
    assert tuple(sent_out_of_host(workers_by_host, method) for method in METHODS) == pytest.approx(sent)


def test_no_method_sends_less_than_slices():
    for workers_by_host in [(2, 2), (3, 3, 3), (4, 2), (1, 5, 2), (1,) * 7, (2,) * 16]:
        least = sent_out_of_host(workers_by_host, SLICES)
        assert all(sent_out_of_host(workers_by_host, method) >= least - 1e-12 for method in METHODS)


def test_without_a_measurement_hosts_of_several_workers_come_first_and_others_keep_to_fewest_bytes():
    shared = (SumRule(LEADER_UP_TO_BYTES, LEADER), SumRule(ANY_BYTES, SLICES))
    assert stated_rules((2, 2)) == stated_rules((4,)) == stated_rules((1, 3)) == shared
    assert stated_rules((1, 1, 1, 1)) == (SumRule(RING_FROM_BYTES, HALVING), SumRule(ANY_BYTES, RING))
    assert stated_rules((1, 1)) == (SumRule(RING_FROM_BYTES, DOUBLING), SumRule(ANY_BYTES, RING))
    assert stated_rules((1, 1, 0, 1)) == (SumRule(ANY_BYTES, RING),)


def test_a_rule_is_for_messages_of_up_to_its_bytes():
    rules = (SumRule(100, DOUBLING), SumRule(200, HALVING), SumRule(300, SLICES))
    assert [method_for(rules, size) for size in (0, 100, 101, 200, 299.5, 1e9)] == [
        DOUBLING, DOUBLING, HALVING, HALVING, SLICES, SLICES
    ]  # fmt: skip


def test_the_fastest_method_of_each_size_is_taken_and_kept_where_no_other_is_surely_faster():
    sizes = (64, 1024, 16384)
    seconds = {LEADER: (1.0, 2.0, 8.0), SLICES: (2.0, 2.0, 4.0), RING: (0.99, 5.0)}
    first, *rest = fastest_rules(sizes, seconds)
    assert first.method == RING and 64 < first.up_to_bytes < 256
    assert [rule.method for rule in rest] == [LEADER, SLICES]
    assert 1024 < rest[0].up_to_bytes < 2048 and rest[1].up_to_bytes == ANY_BYTES
    even = {LEADER: (1.0, 1.03, 1.0), SLICES: (1.01, 1.0, 0.96)}
    assert fastest_rules(sizes, even) == (SumRule(ANY_BYTES, LEADER),)


def test_seconds_between_two_sizes_are_on_a_line_through_logarithms():
    sizes = (100, 10_000)
    assert [seconds_at(size, sizes, (1.0, 4.0)) for size in (1, 100, 1000, 10_000)] == pytest.approx([1, 1, 2, 4])
    assert seconds_at(10_001, sizes, (1.0, 4.0)) is None
    assert seconds_at(1000, sizes, (1.0,)) is None


def test_measured_rules_are_for_those_workers_alone():
    known = (SumRules((2, 2), (SumRule(ANY_BYTES, DOUBLING),)),)
    assert rules_for((2, 0, 2), known) == known[0].rules
    assert rules_for((2, 2, 2), known) == stated_rules((2, 2, 2))
