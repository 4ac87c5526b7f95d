"""What goes between islands: the dense variables and the union of touched rows, once in so many updates."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(300)

SCRIPT = Path(__file__).parent / "scripts" / "islands.py"
MARGIN = 0.03
"""Headers of Ethernet, IP and TCP in large frames, and what keeps the workers in step."""


@pytest.mark.rotates
@pytest.mark.parametrize(("every", "wire_dtype"), [(1, ""), (8, ""), (8, "bfloat16")])
def test_islands_send_what_they_average_once_in_so_many_updates(lab, start, every, wire_dtype):
    file = lab.resource_file(1, islands=("a", "b"))
    status, stdout, stderr = start(
        "-m", "parallax.entry.cli", "run", "-r", file, SCRIPT, every, file, wire_dtype
    ).finish()
    assert status == 0, stderr
    found = re.findall(r"worker \d sent (\d+) expected (\d+)", stdout)
    assert len(found) == 2, stdout
    assert all(abs(int(sent) / int(expected) - 1) <= MARGIN for sent, expected in found), stdout
