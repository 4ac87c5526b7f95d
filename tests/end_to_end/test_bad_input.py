"""What cannot run is refused before anything is started, with the rule, what was received, and what to do."""

from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "scripts" / "refused.py"


@pytest.mark.rotates
def test_parallel_run_refuses_what_cannot_run(start, tmp_path):
    done = start(SCRIPT, tmp_path).finish()
    assert done.status == 0 and "all good" in done.stdout, str(done)
