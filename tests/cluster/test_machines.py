"""The machines of a job."""

from parallax.cluster.machines import Cluster, Host


def test_the_leader_is_the_first_host_with_workers():
    hosts = Host("a", 0, num_servers=1), Host("b", 2), Host("c", 1)
    assert Cluster(hosts).leader.address == "b"
