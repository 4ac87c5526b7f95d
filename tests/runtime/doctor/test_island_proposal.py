"""Islands that links suggest, and the turns in which pairs of hosts are measured."""

from __future__ import annotations

import pytest

from parallax.cluster.machines import Cluster, Host
from parallax.runtime.doctor.island_proposal import find_islands, proposal_text
from parallax.runtime.doctor.links import find_opponent


def rates(islands: str, within: float = 100.0, between: float = 10.0) -> list[list[float]]:
    found = [[within if one == other else between for other in islands] for one in islands]
    for host, row in enumerate(found):
        row[host] = 0.0
    return found


@pytest.mark.parametrize(
    ("islands", "found"),
    [("aabb", [[0, 1], [2, 3]]), ("abab", [[0, 2], [1, 3]]), ("aaab", [[0, 1, 2], [3]]), ("aaaa", []), ("abcd", [])],
)
def test_hosts_with_fast_links_to_each_other_are_an_island(islands: str, found: list[list[int]]) -> None:
    assert find_islands(rates(islands)) == found


def test_links_that_are_little_faster_make_no_island() -> None:
    assert find_islands(rates("aabb", 39.0)) == [] and find_islands(rates("aabb", 40.0))
    bridged = rates("aabb")
    bridged[1][2] = bridged[2][1] = 100.0  # 0 - 1 - 2 - 3, where 0 and 2 have a slow link
    assert find_islands(bridged) == [] == find_islands([])


def test_racks_in_regions_are_proposed_as_regions() -> None:
    racks = rates("aabbccdd", 1000.0, 100.0)
    for a, b in ((a, b) for a in range(4) for b in range(4, 8)):
        racks[a][b] = racks[b][a] = 10.0
    assert find_islands(racks) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_the_lines_of_a_resource_file_are_printed() -> None:
    hosts = [Host(f"h{number}", 1 + number // 2) for number in range(4)]
    text = proposal_text(Cluster(tuple(hosts)), rates("aabb"))
    assert "at least 4 times as fast within islands as between" in text
    assert text.splitlines()[1:] == [
        "- {address: h0, workers: 1, island: island0}",
        "- {address: h1, workers: 1, island: island0}",
        "- {address: h2, workers: 2, island: island1}",
        "- {address: h3, workers: 2, island: island1}",
        "Islands must have equally many workers: change these numbers.",
    ]
    assert proposal_text(Cluster(tuple(hosts)), ()) == ""
    named = tuple(Host(f"h{number}", 1, island="ab"[number // 2]) for number in range(4))
    assert proposal_text(Cluster(named), rates("aabb")) == ""


@pytest.mark.parametrize("hosts", range(3, 17))
def test_every_two_hosts_meet_once(hosts: int) -> None:
    rounds, met = hosts - 1 + hosts % 2, []
    for turn in range(rounds):
        for host in range(hosts):
            other = find_opponent(host, turn, rounds)
            assert other >= hosts or find_opponent(other, turn, rounds) == host
            met += [(host, other)] if other < hosts else []
    assert sorted(met) == [(a, b) for a in range(hosts) for b in range(hosts) if a != b]
