"""Checkpoints of three workers, of other numbers of workers and of one process without the project: one job makes all
checks (program.py), and each is then a test of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.warm_worker import fork_workers

LIMIT_S = 450  # it takes some 30 s on a machine of two cores that does nothing else
LAUNCH = (sys.executable, "-m", "tests.launched", "3", "-m", "tests.runtime.checkpoint.program")
ROOT = Path(__file__).resolve().parents[3]
CHECKS = [
    "three_workers_write_what_saver_writes, during training too, resource",
    "three_workers_write_what_saver_writes, during training too, reference",
    "a_checkpoint_of_saver_is_read",
    "2 workers read it by allgather",
    "2 workers read it by alltoall, reference",
    "training_goes_on_after_reading_as_it_would_have",
    "one_chunk_is_enough_for_all",
    "whoever_sees_the_folder_writes_its_share",
    "a_full_disk_of_one_worker_takes_older_checkpoints_and_is_told_by_all",
    "a_failure_while_writing_keeps_the_one_before",
    "what_does_not_fit_is_refused",
    "no_checkpoint_is_no_error",
    "a_named_checkpoint_that_is_gone_is_refused",
    "a_damaged_checkpoint_is_skipped_on_all_workers",
    "a_folder_that_cannot_be_written_is_refused",
    "a_full_disk_is_told_in_words",
    "a_full_disk_beside_training_is_told_by_the_loop",
    "an_image_that_is_lost_skips_one_checkpoint_of_all_workers",
    "a_machine_that_cannot_copy_a_process_is_named_on_all_workers",
    "workers_at_different_steps_are_refused",
]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The names of the checks that were made, all well."""
    folder = tmp_path_factory.mktemp("checkpoint")
    argv = [*LAUNCH, str(folder / "result.json"), str(folder)]
    done = subprocess.run(
        argv, cwd=ROOT, env=fork_workers(os.environ), capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, "\n".join((done.stdout + done.stderr).splitlines()[-40:])
    return json.loads((folder / "result.json").read_text())


@pytest.mark.rotates(group="of one job")
@pytest.mark.timeout(LIMIT_S + 60)
@pytest.mark.parametrize("check", CHECKS)
def test_checkpoints(results: Any, check: str) -> None:
    assert check in results


@pytest.mark.timeout(LIMIT_S + 60)
@pytest.mark.rotates(group="of one job")
def test_every_check_is_listed(results: Any) -> None:
    assert sorted(results) == sorted(CHECKS)
