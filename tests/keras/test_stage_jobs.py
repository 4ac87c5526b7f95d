"""Jobs of one and two replicas of two stages: fit with callbacks, train_on_batch, a function, read as ever."""

from pathlib import Path

import numpy as np
import pytest

from tests.end_to_end.conftest import CLI, start, warm_server, warm_workers, write  # noqa: F401

SCRIPTS = Path(__file__).parent / "scripts"
SCRIPT, LOST = SCRIPTS / "staged.py", SCRIPTS / "staged_and_lost.py"


@pytest.mark.rotates
@pytest.mark.timeout(300)
@pytest.mark.parametrize("workers", [2, pytest.param(4, marks=pytest.mark.rotates)])
def test_a_job_in_stages_is_what_plain_keras_is(start, tmp_path, workers):  # noqa: F811
    done = start(*CLI, "run", "--workers", workers, "--verify-first", 1, SCRIPT, tmp_path).finish()
    assert done.status == 0, str(done)
    told = dict(line.split(" ", 1) for line in done.stdout.splitlines() if line.startswith(("differs", "trained")))
    assert f"Verified step 1 of 1: {workers} workers and one process are equal" in done.stdout, str(done)
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
@pytest.mark.parametrize(
    ("name", "status", "said"),
    [("SIGKILL", 137, "was killed by SIGKILL"), ("SIGSTOP", 124, "is silent: a signal stopped its process")],
)
def test_a_worker_lost_within_a_micro_batch_ends_the_job_by_name_or_is_replaced(
    start,  # noqa: F811
    tmp_path,
    rank,
    name,
    status,
    said,
):
    lost = start(*CLI, "run", "--workers", 2, LOST, tmp_path, rank, 0, name).finish()
    assert lost.status == status and f"rank {rank} {said}" in lost.stderr, str(lost)
    (tmp_path / "lost").unlink()
    found = weights_of(start(*CLI, "run", "--workers", 2, LOST, tmp_path, rank, 1, name).finish())
    assert (tmp_path / "lost").exists()
    wanted = weights_of(start(LOST, tmp_path, "plain", 0, plain=True).finish())
    assert np.max(np.abs(found - wanted)) <= 1e-6
