"""The table of transports, and its command on two workers of this machine."""

import json
import re
import subprocess
import sys

import pytest

from ops.bench.race.results import Race, Ran, Turn
from ops.bench.transports.table import Row, absent_lines, table_lines


def race(hosts, workers, run):
    return Race("dense", (), hosts, workers, 125e6, 100, "images", 0.0, "", 0.04, (run,))


def test_a_row_has_throughput_efficiency_bytes_and_share_of_communication():
    turns = tuple(Turn(10, seconds, (3000,), (2000,), 1.0) for seconds in (0.5, 0.4, 0.8))
    run = Ran("parallax", True, turns, (), ())
    row = Row("dense", 25, race(4, 1, run), run, alone_s=0.02)
    assert row.cells() == (
        *("dense", "25", "4 x 1", "Parallax, MPI over TCP"),
        *("2000 images", "1.25e+03-2.5e+03", "0.40", "300 B", "20 %"),
    )


def test_what_did_not_run_is_in_the_table_with_the_reason():
    run = Ran("parallax-ucx", True, (), (), (), "ended with exit status 1\nno device")
    row = Row("dense", 25, race(1, 2, run), run, alone_s=0.02)
    (line,) = [line for line in table_lines([row]) if "UCX" in line]
    assert "did not run" in line and "ended with exit status 1" in line


@pytest.mark.parametrize(
    ("hosts", "workers", "medium"), [(1, 4, "shared memory"), (4, 1, "TCP"), (2, 2, "shared memory and TCP")]
)
def test_the_medium_follows_from_the_layout(hosts, workers, medium):
    run = Ran("horovod", True, (), (), ())
    assert Row("dense", 8, race(hosts, workers, run), run, 1.0).transport == f"Horovod, MPI over {medium}"


def test_transports_that_a_machine_has_not_are_named():
    found = list(absent_lines("'--without-verbs' '--without-cuda'"))
    assert found[0] == "Not measured: CUDA-aware MPI (Open MPI without CUDA; untested on GPUs)."
    assert [re.match("Not measured: (.*) \\(", line)[1] for line in found] == [
        *("CUDA-aware MPI", "GPUDirect RDMA", "InfiniBand verbs")
    ]


@pytest.mark.rotates
@pytest.mark.timeout(400)
def test_the_command_measures_two_workers_of_this_machine(tmp_path):
    argv = ["--models", "recsys", "--batches", "8", "--layouts", "1x2", "--transports", "parallax,horovod"]
    argv += ["--rounds", "1", "--turn-seconds", "0.2", "--json", str(tmp_path / "rows.json")]
    done = subprocess.run(
        [sys.executable, "-m", "ops.bench", "transports", *argv], capture_output=True, text=True, timeout=380
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.search(r"recsys +8 +1 x 2 +Parallax, MPI over shared memory +\S+ examples", done.stdout), done.stdout
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [row["run"]["system"] for row in rows] == ["parallax", "horovod"] and rows[0]["alone_s"] > 0
