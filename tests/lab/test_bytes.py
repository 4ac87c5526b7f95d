"""What leaves a host when several of its workers touch equal rows: once what they touch together."""

import re
from pathlib import Path

import pytest

from parallax.runtime.launcher.mpirun import this_launcher

pytestmark = pytest.mark.timeout(300)

SCRIPT = Path(__file__).parent / "scripts" / "union.py"
MARGIN = 0.10
"""Headers of Ethernet, IP, TCP and gRPC, and what keeps the workers in step, beside the rows."""


@pytest.mark.rotates
@pytest.mark.parametrize("route", ["alltoall", "ps"])
def test_the_bytes_that_leave_a_host_are_those_of_the_union_of_its_workers_rows(lab, start, route):
    if route == "ps" and not Path(this_launcher().preload_library).is_file():
        pytest.skip("this environment has no libparallax_preload.so: `parallax setup`")
    status, stdout, stderr = start(
        "-m", "parallax.entry.cli", "run", "-r", lab.resource_file(2), SCRIPT, route, "merged"
    ).finish()
    assert status == 0, stderr
    found = re.findall(r"host \d sent (\d+) bytes, formula (\d+)", stdout)
    assert len(found) == 2, stdout
    assert all(abs(int(sent) / int(expected) - 1) <= MARGIN for sent, expected in found), stdout
