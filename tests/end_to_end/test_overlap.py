"""Steps that overlap give what steps one after the other give, bit for bit, as a job shows it."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(300)

SCRIPT = Path(__file__).parent / "scripts" / "overlapping.py"


@pytest.mark.rotates
def test_steps_that_overlap_change_no_value(start):
    seen = {}
    for overlap in ("on", "off"):
        done = start("-m", "parallax.entry.cli", "run", "--workers", 2, SCRIPT, overlap).finish()
        assert done.status == 0, str(done)
        assert "Steps do not overlap" not in done.stderr, str(done)
        seen[overlap] = [done.lines(rank) for rank in (0, 1)]
        assert all(len([line for line in lines if line.startswith("step")]) == 30 for lines in seen[overlap])
    assert seen["on"] == seen["off"]
