"""Per-worker statistics of a graph's normalizations, against one process that normalizes the parts by themselves."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(240)

SCRIPT = Path(__file__).parent / "scripts" / "own_statistics.py"


@pytest.mark.rotates
def test_statistics_are_those_of_unequal_shares_and_moving_averages_those_of_all(start):
    done = start("-m", "parallax.entry.cli", "run", "--workers", 2, SCRIPT).finish()
    assert done.status == 0, str(done)
    differences = [float(line.split()[1]) for rank in (0, 1) for line in done.lines(rank) if line.startswith("differs")]
    assert len(differences) == 2 and max(differences) <= 1e-6
