"""Jobs of one and two replicas of two stages: fit with callbacks, train_on_batch, a function, read as ever."""

from pathlib import Path

import pytest

from tests.end_to_end.conftest import CLI, start, warm_server, warm_workers, write  # noqa: F401

SCRIPT = Path(__file__).parent / "scripts" / "staged.py"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("workers", [2, pytest.param(4, marks=pytest.mark.rotates)])
def test_a_job_in_stages_is_what_plain_keras_is(start, tmp_path, workers):  # noqa: F811
    done = start(*CLI, "run", "--workers", workers, "--verify-first", 1, SCRIPT, tmp_path).finish()
    assert done.status == 0, str(done)
    told = dict(line.split(" ", 1) for line in done.stdout.splitlines() if line.startswith(("differs", "trained")))
    assert f"Step 1 of 1 that are verified: {workers} workers and one process are equal" in done.stdout, str(done)
    assert told["trained"] == "3 epochs"  # EarlyStopping has the losses of the last stage
    assert max(map(float, told["differs"].split())) <= 2e-6, told
    assert "Steps do not overlap" not in done.stderr, str(done)
