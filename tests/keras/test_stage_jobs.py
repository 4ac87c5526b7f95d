"""Jobs of one and two replicas of two stages: fit with callbacks, train_on_batch, a function, read as ever."""

from pathlib import Path

import numpy as np
import pytest

from tests.end_to_end.conftest import CLI, start, warm_server, warm_workers, write  # noqa: F401

SCRIPTS = Path(__file__).parent / "scripts"
SCRIPT, KILLED = SCRIPTS / "staged.py", SCRIPTS / "staged_and_killed.py"


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


def weights_of(done):
    assert done.status == 0, str(done)
    line = next(line for line in done.stdout.splitlines() if line.startswith("FOUND "))
    return np.array(line.split()[1:], float)


@pytest.mark.rotates
@pytest.mark.new_workers  # they are killed
@pytest.mark.timeout(300)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_worker_killed_within_a_micro_batch_ends_the_job_by_name_or_is_replaced(start, tmp_path, rank):  # noqa: F811
    killed = start(*CLI, "run", "--workers", 2, KILLED, tmp_path, rank, 0).finish()
    assert killed.status == 137 and f"rank {rank} was killed by SIGKILL" in killed.stderr, str(killed)
    (tmp_path / "killed").unlink()
    found = weights_of(start(*CLI, "run", "--workers", 2, KILLED, tmp_path, rank, 1).finish())
    assert (tmp_path / "killed").exists()
    wanted = weights_of(start(KILLED, tmp_path, "plain", 0).finish())
    assert np.max(np.abs(found - wanted)) <= 1e-6
