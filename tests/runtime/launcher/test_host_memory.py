"""What of a job's state stays in the memory of hosts: nothing, also when its launcher was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from parallax.cluster.machines import local_cluster
from parallax.runtime.launcher.host_memory import clear_left, host_folder, host_memory

LAUNCHER = """
import sys
from parallax.cluster.machines import local_cluster
from parallax.runtime.launcher.host_memory import host_folder, host_memory
with host_memory(local_cluster(1, ""), sys.argv[1], sys.argv[2]):
    host_folder(sys.argv[1], sys.argv[2], "here").mkdir()
    print("ready", flush=True)
    sys.stdin.read()
"""


def launcher(folder: Path, job: str) -> subprocess.Popen[str]:
    """A process that is in the middle of a job."""
    argv = [sys.executable, "-c", LAUNCHER, str(folder), job]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_a_killed_launcher_has_left_goes_at_the_next_start_and_what_a_living_one_has_stays(tmp_path: Path) -> None:
    with launcher(tmp_path, "dead") as dead, launcher(tmp_path, "living") as living:
        dead.kill()
        dead.wait()
        assert len(names(tmp_path)) == 4
        with host_memory(local_cluster(1, ""), tmp_path, "own"):
            host_folder(tmp_path, "own", "here").mkdir()
            assert names(tmp_path) == [
                f"parallax-state-{job}{end}" for job in ("living", "own") for end in ("-here", ".launcher")
            ]
        assert names(tmp_path) == ["parallax-state-living-here", "parallax-state-living.launcher"]
        living.communicate()
        assert living.returncode == 0 and names(tmp_path) == []


def test_hosts_that_the_next_job_does_not_have_stay_in_the_record(tmp_path: Path) -> None:
    with launcher(tmp_path, "dead") as dead:
        os.kill(dead.pid, signal.SIGKILL)
    record = tmp_path / "parallax-state-dead.launcher"
    own = record.read_text()
    record.write_text(f"elsewhere\n{own}")
    clear_left(local_cluster(1, ""), tmp_path)
    assert names(tmp_path) == [record.name] and record.read_text() == "elsewhere\n"
    record.write_text("elsewhere\n")
    host_folder(tmp_path, "dead", "here").mkdir()
    clear_left(local_cluster(1, ""), tmp_path)
    assert len(names(tmp_path)) == 2  # this host is not in the record


def test_a_machine_without_the_file_system_launches_all_the_same(tmp_path: Path) -> None:
    with host_memory(local_cluster(1, ""), tmp_path / "none", "own"):
        assert not (tmp_path / "none").exists()
