"""A job of two replicas of two stages: fit with callbacks, train_on_batch, a function, read by the script as ever."""

from pathlib import Path

import pytest

from tests.end_to_end.conftest import CLI, start, warm_server, warm_workers, write  # noqa: F401

SCRIPT = Path(__file__).parent / "scripts" / "staged.py"


@pytest.mark.timeout(300)
def test_a_job_in_stages_is_what_plain_keras_is(start, tmp_path):  # noqa: F811
    done = start(*CLI, "run", "--workers", 4, SCRIPT, tmp_path).finish()
    assert done.status == 0, str(done)
    told = dict(line.split(" ", 1) for line in done.stdout.splitlines() if line.startswith(("differs", "trained")))
    assert told["trained"] == "3 epochs"  # EarlyStopping has the losses of the last stage
    assert max(map(float, told["differs"].split())) <= 2e-6, told
    assert "Steps do not overlap" not in done.stderr, str(done)
