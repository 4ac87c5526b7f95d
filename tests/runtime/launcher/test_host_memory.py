"""What of a job's state stays in the memory of hosts: nothing, also when its launcher was killed."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from parallax.base.private_files import lock_private_file, make_private_folder
from parallax.cluster.machines import local_cluster
from parallax.runtime.launcher.host_memory import clear_orphans, host_folder, host_memory
from parallax.runtime.supervisor.processes import remove_scratch

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
    clear_orphans(local_cluster(1, ""), tmp_path)
    assert names(tmp_path) == [record.name] and record.read_text() == "elsewhere\n"
    record.write_text("elsewhere\n")
    host_folder(tmp_path, "dead", "here").mkdir()
    clear_orphans(local_cluster(1, ""), tmp_path)
    assert len(names(tmp_path)) == 2  # this host is not in the record


def test_a_machine_without_the_file_system_launches_all_the_same(tmp_path: Path) -> None:
    with host_memory(local_cluster(1, ""), tmp_path / "none", "own"):
        assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("kind", ["link", "link to nowhere", "second name", "fifo", "folder"])
def test_what_is_no_file_of_a_launcher_is_left_alone_under_the_name_of_a_record(tmp_path: Path, kind: str) -> None:
    shared, target = tmp_path / "shared", tmp_path / "target"
    shared.mkdir()
    content = f"elsewhere\n{local_cluster(1, '').hosts[0].address}\n"  # a launcher would rewrite such a record
    target.write_text(content)
    record = shared / "parallax-state-other.launcher"
    if kind.startswith("link"):
        record.symlink_to(target if kind == "link" else tmp_path / "none")
    elif kind == "second name":
        record.hardlink_to(target)
    elif kind == "fifo":
        os.mkfifo(record)
    else:
        record.mkdir()
    (shared / "parallax-state-other-here").mkdir()
    with host_memory(local_cluster(1, ""), shared, "own"):
        assert "parallax-state-own.launcher" in names(shared)
    assert target.read_text() == content and not (tmp_path / "none").exists()
    assert names(shared) == ["parallax-state-other-here", "parallax-state-other.launcher"]


@pytest.mark.parametrize(
    "name",
    ["parallax-state-own.launcher", f"parallax-state-own.launcher.{os.getpid()}"],
    ids=["the name", "the name before it"],
)
def test_a_link_under_the_name_of_the_own_record_is_not_written_through(tmp_path: Path, name: str) -> None:
    target, shared = tmp_path / "target", tmp_path / "shared"
    shared.mkdir()
    target.write_text("mine\n")
    (shared / name).symlink_to(target)
    with host_memory(local_cluster(1, ""), shared, "own"):
        assert target.read_text() == "mine\n"


def test_nobody_else_can_open_a_record_and_so_hold_its_lock(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with host_memory(local_cluster(1, ""), tmp_path, "own"):
            (record,) = tmp_path.iterdir()
            assert stat.S_IMODE(record.stat().st_mode) == 0o600 and lock_private_file(record) is None
    finally:
        os.umask(before)


@pytest.mark.parametrize("kind", ["link", "open to all", "file"])
def test_a_state_is_not_put_into_what_somebody_else_may_have_made(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "parallax-state-own-here"
    if kind == "link":
        (tmp_path / "target").mkdir(0o700)
        folder.symlink_to(tmp_path / "target")
    elif kind == "file":
        folder.touch()
    else:
        folder.mkdir()
        folder.chmod(0o777)
    with pytest.raises(PermissionError, match="must be a folder that user .* owns and nobody else may look into"):
        make_private_folder(folder)


def test_a_folder_of_another_user_is_refused_and_the_own_one_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "below" / "own"
    for _ in range(2):
        make_private_folder(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    with pytest.raises(PermissionError, match="Remove it"):
        make_private_folder(folder)
    (tmp_path / "record").touch()
    assert lock_private_file(tmp_path / "record") is None


def test_scratch_is_removed_without_following_links(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    (tmp_path / "segment-1").symlink_to(tmp_path / "kept")
    (tmp_path / "segment-2").touch()
    remove_scratch([f"{tmp_path}/segment-*"])
    assert names(tmp_path) == ["kept"] and names(tmp_path / "kept") == ["file"]
