"""The machines of a job."""

import pytest

from parallax.cluster.machines import Cluster, FieldError, Host


def test_the_leader_is_the_first_host_with_workers():
    hosts = Host("a", 0, num_servers=1), Host("b", 2), Host("c", 1)
    assert Cluster(hosts).leader.address == "b"


def test_islands_are_hosts_one_after_the_other_with_equally_many_workers():
    hosts = [Host("a", 2, island="x"), Host("b", 1, island="y"), Host("c", 1, island="y")]
    assert Cluster(tuple(hosts)).num_islands == 2
    assert Cluster((Host("a", 2), Host("b", 1))).num_islands == 1
    for odd, rule in (
        ([*hosts, Host("d", 1)], "hosts\\[3\\]: expected the island of each host, or of none, got d without"),
        ([*hosts, Host("d", 1, island="x")], "hosts\\[3\\]: expected the hosts of an island one after the other"),
        (hosts[:2], "equally many workers in each island, got 2 in 'x', 1 in 'y'"),
    ):
        with pytest.raises(FieldError, match=rule):
            Cluster(tuple(odd))
    with pytest.raises(FieldError, match="island: expected a name"):
        Host("a", 2, island="x y")
