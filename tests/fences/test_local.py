"""A job on one machine without servers: what listens, what its children inherit, and who may read its files."""

import contextlib
import os
import stat
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from parallax.runtime.launcher.mpirun import this_launcher
from parallax.runtime.supervisor.processes import processes_with
from tests.fences.strangers import ports_of, trouble, trouble_at_once

pytestmark = pytest.mark.timeout(120)

LAUNCHER = """
import sys
from pathlib import Path
from parallax.cluster.machines import local_cluster
from parallax.runtime.launcher.job import Job
from parallax.runtime.launcher.launch import launch
program = ("-c", Path("program.py").read_text())
sys.exit(launch(Job(program, local_cluster(2, ""), output_folder=Path("said"))).status)
"""

# As the workers begin (parallax/runtime/worker/main.py), but for TensorFlow.
PROGRAM = """
import subprocess, time
from pathlib import Path
from parallax.runtime.supervisor.preload import forget_preloaded
forget_preloaded()
from mpi4py import MPI
world = MPI.COMM_WORLD
text = subprocess.run(["env"], capture_output=True, text=True, check=True).stdout
maps = Path("/proc/self/maps").read_text()
print("loaded", "libparallax_preload" in maps, *(line for line in text.splitlines() if line.startswith("LD_PRELOAD")))
assert len(world.allgather(bytes(1_000_000))) == 2
Path(f"ready.{world.rank}").touch()
while not Path("end").exists():
    time.sleep(0.05)
assert b"".join(world.allgather(bytes(1_000_000))) == bytes(2_000_000)
print("good")
"""
OWN = "libdl.so.2"  # what the user has loaded; any library that is everywhere


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    if not Path(this_launcher().preload_library).is_file():
        pytest.skip("this environment has no libparallax_preload.so: `parallax setup`")
    return tmp_path_factory.mktemp("local")


@pytest.fixture(scope="module")
def job(folder):
    """What was seen of one job: the ports of each of its processes, what strangers got, its status and output."""
    mark = {"PARALLAX_TEST": uuid.uuid4().hex}
    (folder / "program.py").write_text(PROGRAM)
    process = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER],
        cwd=folder,
        env={**os.environ, **mark, "LD_PRELOAD": OWN},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        umask=0o022,
    )
    with contextlib.ExitStack() as ends:
        ends.callback(process.kill)
        deadline_s, known = time.monotonic() + 60, set()
        while not all((folder / f"ready.{rank}").exists() for rank in range(2)):
            assert time.monotonic() < deadline_s and process.poll() is None, process.communicate()
            early, connections = trouble_at_once(processes_with(mark), known)
            assert early == b"", known
            for one in connections:
                ends.callback(one.close)
            time.sleep(0.05)
        command = {pid: Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0] for pid in processes_with(mark)}
        ports = ports_of(command)
        answers, connections = trouble([(port.address, port.number) for port in ports])
        for one in connections:
            ends.enter_context(one)
        (folder / "end").touch()
        stdout, stderr = process.communicate(timeout=60)
        ends.pop_all()
    return [(port, command[port.pid].decode()) for port in ports], answers, process.returncode, stdout.decode(), stderr


def test_only_mpirun_listens_and_on_loopback_only(job):
    ports = job[0]
    assert {port.address for port, _ in ports} <= {"127.0.0.1"}, ports
    assert all(Path(command).name.startswith(("mpirun", "orterun")) for _, command in ports), ports


def test_what_strangers_write_harms_no_job_and_is_not_answered(job):
    _, answers, status, stdout, stderr = job
    assert (status, stdout.count("good"), stderr, answers) == (0, 2, b"", b"")


def test_what_a_rank_starts_is_loaded_with_the_users_libraries_alone(job):
    assert job[3].count(f"loaded True LD_PRELOAD={OWN}\n") == 2, job[3]


def test_the_files_of_a_job_are_its_users_alone(job, folder):
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (folder / "said").rglob("*")}
    assert set(modes.values()) == {0o700, 0o600} and len(modes) == 6, modes
