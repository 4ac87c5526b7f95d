"""What an all-reduce sends out of a host, by how many workers each host has."""

import pytest

from parallax.cluster.all_reduce import halves, sent_out_of_host


@pytest.mark.parametrize(
    ("workers_by_host", "is_halved", "sent"),
    [
        ((2, 2, 2, 2), True, 1.5),  # a ring would send 1.75
        ((4, 4), True, 1.0),
        ((2, 2), True, 1.0),
        ((2, 0, 2), True, 1.0),
        ((1, 1, 1, 1), False, 1.5),  # both alike
        ((3, 1), False, 1.5),
        ((1, 2, 1), False, 1.5),
        ((2, 2, 2), False, 5 / 3),  # no 2^k workers
        ((4,), False, 0.0),
    ],
)
def test_the_busiest_host_sends_least(workers_by_host, is_halved, sent):
    assert (halves(workers_by_host), sent_out_of_host(workers_by_host)) == (is_halved, pytest.approx(sent))
