"""Words for people."""

import pytest

from parallax.report.text import hosts_text


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({0: 6, 1: 6, 2: 6}, "6 on each of hosts 0-2"),
        ({0: 2, 1: 2, 2: 0, 3: 2, 4: 1}, "2 on each of hosts 0-1, 2 on host 3, 1 on host 4"),
        ({2: 1, 0: 1}, "1 on host 0, 1 on host 2"),
        ({}, ""),
    ],
)
def test_neighboring_hosts_that_are_alike_are_named_together(counts, expected):
    assert hosts_text(counts) == expected
