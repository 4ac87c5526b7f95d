import math

import pytest

from parallax.base.errors import ConfigError
from parallax.cluster.machines import Cluster, Host, local_cluster
from parallax.runtime.launcher import job as job_module
from parallax.runtime.launcher.job import Job, layout_of

TWO = local_cluster(2, "")
MIXED = Cluster((Host("a", 2), Host("b", 0, num_servers=2), Host("c", 1, num_servers=0)))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"program": ()}, "argv is empty"),
        ({"program": ("",)}, "argv is empty"),
        ({"program": ("a\0b",)}, "zero byte"),
        ({"program": ("a", ":")}, "may be just `:`"),
        ({"stall_timeout_s": 0.0}, "above 0 s, got 0.0"),
        ({"stall_timeout_s": math.nan}, "above 0 s, got nan"),
        ({"environment": (("A=B", "1"),)}, "'A=B' is no name"),
        ({"environment": (("A", "1"), ("A", "2"))}, "has A twice"),
        ({"environment": (("LD_BIND_NOW", "0"),)}, "itself sets LD_BIND_NOW"),
        ({"environment": (("A", "x\0y"),)}, "zero byte"),
        ({"cluster": Cluster((Host("a", 1), Host("2001:db8::1", 1)))}, "IPv4 addresses, got '2001:db8::1'"),
        ({"cluster": Cluster((Host("a", 1), Host("node_1", 1)))}, "hyphens, and IPv4 addresses, got 'node_1'"),
        ({"servers": (1,)}, "hosts from 0 to 0, ascending, not \\(1,\\)"),
        ({"servers": (1, 0), "cluster": MIXED}, "hosts from 0 to 2, ascending"),
        (
            {"servers": (0,), "cluster": Cluster((Host("localhost", 1), Host("far.invalid", 1)))},
            "localhost means a different machine on each",
        ),
    ],
)
def test_a_job_that_cannot_be_started_is_refused(arguments, words):
    with pytest.raises(ConfigError, match=words):
        Job(**{"program": ("train.py",), "cluster": TWO, **arguments})


def test_a_stall_timeout_may_be_infinite():
    assert Job(("train.py",), TWO, stall_timeout_s=math.inf).stall_timeout_s == math.inf


def test_the_job_knows_its_own_control_variables():
    assert job_module._RESERVED == (
        "LD_BIND_NOW",
        "PARALLAX_CONTROL_FD",
        "PARALLAX_HOST_ADDRESS",
        "PARALLAX_JOB_ID",
        "PARALLAX_LISTEN_ADDRESS",
        "PARALLAX_LISTEN_PORT",
        "PARALLAX_SECRET",
        "PARALLAX_PREEMPTION_FD",
    )


def test_every_host_has_a_server_unless_the_resource_file_says_another_number():
    assert layout_of(TWO).servers == (0,)
    assert layout_of(MIXED).servers == (0, 1, 1)


def test_ranks_are_workers_first_and_then_servers_and_have_names():
    job = Job(("train.py",), MIXED, layout_of(MIXED).servers)
    assert (job.num_workers, job.num_ranks) == (3, 6)
    assert [job.name_of(rank) for rank in range(6)] == [
        "rank 0 on host a",
        "rank 1 on host a",
        "rank 2 on host c",
        "server 0 on host a",
        "server 1 on host b",
        "server 2 on host b",
    ]
    assert [job.label_of(rank) for rank in range(6)] == ["0", "1", "2", "server 0", "server 1", "server 2"]


def test_on_one_host_a_worker_is_named_by_its_rank():
    assert Job(("train.py",), TWO).name_of(1) == "rank 1"
