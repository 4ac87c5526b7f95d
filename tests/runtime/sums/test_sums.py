"""What workers put together is the sum, by each method and layout: one job of eight workers is all hosts."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from parallax.plans.sum_methods import HOST_FIRST, METHODS
from tests.runtime.sums.program import LAYOUTS, TYPES

ROOT = Path(__file__).resolve().parents[3]
LIMIT_S = 200
MODULE = (sys.executable, "-m", "ops.bench.jobs.launch_module")
LAUNCH = (*MODULE, "tests.runtime.sums.program", "8", "none")
PADDED_BYTES = {"float64": 8000, "int64": 8000, "float32": 4032, "int32": 4032}
HALF_OR_BYTE = {"float16": 2048, "int16": 2048, "uint16": 2048, "int8": 1024, "uint8": 1024}

pytestmark = pytest.mark.timeout(LIMIT_S + 60)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Any:
    file = tmp_path_factory.mktemp("sums") / "results.json"
    argv = [*LAUNCH, str(file)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, "\n".join((done.stdout + done.stderr).splitlines()[-30:])
    return json.loads(file.read_text())


@pytest.mark.rotates
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_method_sums_every_type_and_length_in_one_order(results: Any, layout: str) -> None:
    for method in METHODS:
        found = results[layout][method]
        assert found["is_equal"], method
        # A sum of W parts rounds W - 1 times, each time by half of a rounding of what is there.
        assert all(found["errors"][name] <= sum(LAYOUTS[layout]) / 2 for name in TYPES), found["errors"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_part_is_written_once_and_read_once_and_nothing_is_allocated_after_the_first_step(
    results: Any, layout: str
) -> None:
    for method in METHODS:
        assert results[layout][method]["made"] == [0, 0], method
        is_shared = method in HOST_FIRST and LAYOUTS[layout][0] > 1
        once = sum({**PADDED_BYTES, **HALF_OR_BYTE}.values()) if is_shared else 0
        # float64 has its own count of what workers give agreed on, four numbers.
        assert results[layout][method]["copied"] == [once + 32 * is_shared] * 2, method


def test_least_greatest_and_scaled_sums(results: Any) -> None:
    assert results["kinds"]


def test_teams_sum_among_themselves_and_who_is_in_none_is_refused(results: Any) -> None:
    hosts = (0b111, 0b111, 0b111, 0b11000, 0b11000, 0b11100000, 0b11100000, 0b11100000)
    across = (0b101001, 0b1010010, 0b10000100, 0b101001, 0b1010010, 0b101001, 0b1010010, 0b10000100)
    for rank, found in enumerate(results["teams"]):
        assert (found["workers"], found["host"], found["across"]) == (0xFF, hosts[rank], across[rank])
        assert found["group"] == (0b11111 if rank < 5 else 0b11100000)
        assert found["stage"] == (0b10101010 if rank % 2 else 0b01010101)
        assert found.get("leaders") == (0b101001 if rank in (0, 3, 5) else None)
        assert ("refused" in found) == (rank not in (0, 3, 5))
    said = results["teams"][1]["refused"]
    assert said.startswith(
        "A worker must be in the team of each of its exchanges, but 'teams/nobody' is among 'leaders'"
    )


def test_workers_without_shared_memory_say_so_and_sum_over_mpi(results: Any) -> None:
    whys, is_right, windows = results["unshared"]
    assert whys[2].endswith("bytes of shared memory cannot be had: File too large")
    assert whys[3] == "another worker of the host cannot have shared memory"
    assert not any(whys[:2] + whys[4:])
    assert is_right
    assert windows == 0


def test_no_file_of_shared_memory_is_left(results: Any) -> None:
    assert results["left"] == []


def shared_files() -> list[Path]:
    """What is in shared memory by a name, but for Open MPI's own, which other jobs have there too."""
    return sorted(one for one in Path("/dev/shm").iterdir() if not one.name.startswith("vader_segment."))


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("word", "status", "said"),
    [
        (signal.SIGKILL, 128 + signal.SIGKILL, "rank 1 was killed by SIGKILL"),
        (signal.SIGSTOP, 124, "rank 1 is silent: a signal stopped its process"),
    ],
)
def test_a_worker_that_is_lost_in_the_middle_of_sums_ends_the_job_by_name(word: int, status: int, said: str) -> None:
    before = shared_files()
    argv = [*MODULE, "tests.runtime.sums.looping", "3", "none"]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as job:
        try:
            assert job.stdout is not None
            lines = iter(job.stdout.readline, "")
            pid = next(int(found[1]) for line in lines if (found := re.search(r"rank 1 is process (\d+)", line)))
            time.sleep(0.1)  # all of it is between the waits of some sum
            os.kill(pid, word)
            _, told = job.communicate(timeout=60)
        finally:
            job.kill()
    assert job.returncode == status, told
    assert said in told
    assert shared_files() == before
