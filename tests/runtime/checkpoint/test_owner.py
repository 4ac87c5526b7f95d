"""Whose a checkpoint folder is: one job's at a time, and a dead one's no longer."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from parallax.base.errors import CheckpointError
from parallax.runtime.checkpoint.checkpoints import Checkpoints
from parallax.runtime.checkpoint.format import folder_owner
from parallax.runtime.checkpoint.format.folder_owner import OWNER, FolderClaim, FolderInUse, OwnerLimits, claim_of
from parallax.settings.parts import CheckPointConfig
from tests.runtime.checkpoint.test_storage import job, save

LIMITS = OwnerLimits(beat_s=0.1, silent_s=1.0, settle_s=0.05)


@dataclass
class Holder:
    """Another process of this machine, whose job `theirs` has a folder."""

    pid: int

    @classmethod
    def of(cls, folder: Path) -> Holder:
        ready, tells = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                FolderClaim(str(folder), "theirs", "train.py", LIMITS).acquire()
                os.write(tells, b"!")
                time.sleep(600)
            finally:
                os._exit(1)
        os.close(tells)
        assert os.read(ready, 1) == b"!"
        os.close(ready)
        return cls(pid)

    def kill(self) -> None:
        """Ends it, and waits for that."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = 0


def claim(folder: Path, number: str = "mine") -> FolderClaim:
    return FolderClaim(str(folder), number, "own.py", LIMITS)


def mark(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / OWNER).read_text())
    return found


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Holder]:
    made = Holder.of(tmp_path)
    yield made
    made.kill()


def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on this process is on another machine, which cannot see the other's processes."""
    monkeypatch.setattr(folder_owner, "_machine", lambda: "another one")


def test_the_second_job_is_refused_by_the_name_of_the_first(tmp_path: Path, other: Holder) -> None:
    with pytest.raises(FolderInUse, match=f"{tmp_path} is in use by train.py, process {other.pid} on host .* End that"):
        claim(tmp_path).acquire()
    assert mark(tmp_path)["job"] == "theirs"


def test_a_job_of_another_machine_is_seen_to_live_by_its_beat(
    tmp_path: Path, other: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere(monkeypatch)
    monkeypatch.setattr(time, "time", lambda: 0.0)  # clocks may differ
    with pytest.raises(FolderInUse, match=f"process {other.pid} "):
        claim(tmp_path).acquire()


@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_the_mark_of_a_killed_job_blocks_nobody(
    tmp_path: Path, other: Holder, monkeypatch: pytest.MonkeyPatch, is_elsewhere: bool
) -> None:
    other.kill()
    if is_elsewhere:
        elsewhere(monkeypatch)
    made = claim(tmp_path)
    made.acquire()
    made.acquire()  # it is this process's
    assert (mark(tmp_path)["job"], mark(tmp_path)["state"]) == ("mine", "holds")
    made.release()
    assert list(tmp_path.iterdir()) == []


def test_a_number_that_another_process_has_now_is_not_the_owner(tmp_path: Path, other: Holder) -> None:
    other.kill()
    (tmp_path / OWNER).write_text(json.dumps(mark(tmp_path) | {"process": os.getpid()}))
    made = claim(tmp_path)
    made.acquire()
    made.release()


def test_a_later_start_of_a_job_takes_the_folder_at_once_and_the_earlier_one_finds_out(tmp_path: Path) -> None:
    first, second = claim(tmp_path), claim(tmp_path)
    first.acquire()
    text = json.dumps(mark(tmp_path) | {"machine": "another one", "beat": 0})
    first.release()
    (tmp_path / OWNER).write_text(text)
    second.limits = replace(LIMITS, silent_s=600.0)
    second.acquire()
    (tmp_path / OWNER).write_text(text)  # as if that were the later one
    with pytest.raises(FolderInUse, match="It took over the folder while this job did not respond"):
        second.acquire()
    second.release()
    assert (tmp_path / OWNER).read_text() == text


def test_an_owner_that_was_held_up_and_lives_refuses_a_claim(
    tmp_path: Path, other: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere(monkeypatch)
    os.kill(other.pid, signal.SIGSTOP)
    put = folder_owner._write_mark

    def puts_and_wakes(path: str, written: folder_owner.OwnerMark) -> None:
        put(path, written)
        os.kill(other.pid, signal.SIGCONT)

    monkeypatch.setattr(folder_owner, "_write_mark", puts_and_wakes)
    made = claim(tmp_path)
    made.limits = replace(LIMITS, beat_s=1.0, silent_s=2.0)
    with pytest.raises(FolderInUse, match=f"process {other.pid} "):
        made.acquire()
    assert mark(tmp_path)["job"] == "theirs"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"claim": 1}', "\x00" * 10])
def test_a_mark_that_is_none_is_a_dead_owners(tmp_path: Path, text: str) -> None:
    (tmp_path / OWNER).write_text(text)
    made = claim(tmp_path)
    made.acquire()
    made.release()
    assert list(tmp_path.iterdir()) == []


def test_one_of_many_that_come_at_once_has_the_folder(tmp_path: Path) -> None:
    found: list[str] = []

    def takes(number: int) -> None:
        made = FolderClaim(str(tmp_path), f"job {number}", "own.py", LIMITS)
        try:
            made.acquire()
            found.append(mark(tmp_path)["job"])
        except FolderInUse:
            pass

    threads = [threading.Thread(target=takes, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [mark(tmp_path)["job"]]


def test_a_deleted_mark_is_made_again(tmp_path: Path) -> None:
    made = claim(tmp_path)
    made.acquire()
    (tmp_path / OWNER).unlink()
    made.acquire()
    assert mark(tmp_path)["job"] == "mine"
    made.release()


def test_whoever_may_wait_has_the_folder_after_the_other(tmp_path: Path, other: Holder) -> None:
    waits = claim(tmp_path)
    waiting = threading.Thread(target=waits.wait)
    waiting.start()
    time.sleep(0.5)
    other.kill()
    waiting.join(60)
    assert mark(tmp_path)["job"] == "mine"
    waits.release()


def test_a_second_job_deletes_nothing_of_the_first_and_neither_does_the_command(
    tmp_path: Path, other: Holder, capsys: pytest.CaptureFixture[str]
) -> None:
    save(job(tmp_path), 1)
    unfinished = tmp_path / "model.ckpt-2.unfinished" / "part"
    unfinished.parent.mkdir()
    unfinished.write_text("theirs")
    storage = replace(job(tmp_path), claim=claim(tmp_path))
    config = CheckPointConfig(tmp_path, 1)
    with pytest.raises(FolderInUse, match="is in use by train.py"):
        Checkpoints(config, storage, None, "step").load(None)
    with pytest.raises(CheckpointError, match="is in use by train.py"):
        save(storage, 2)
    assert unfinished.read_text() == "theirs"
    other.kill()
    save(storage, 2)
    assert not unfinished.exists() and mark(tmp_path)["job"] == "mine"
    storage.release_folder()
    assert not (tmp_path / OWNER).exists()


def test_a_folder_that_cannot_be_written_is_no_reason_not_to_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    storage = replace(job(tmp_path / "file"), claim=claim(tmp_path / "file"))
    storage.acquire_folder()
    with pytest.raises(CheckpointError, match="Cannot write the checkpoint of step 1 to"):
        save(storage, 1)


def test_a_process_of_no_job_has_a_name_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert claim_of(str(tmp_path), "`command`").title == "`command`"
    monkeypatch.setenv("PARALLAX_JOB", "12ab train.py (launched by process 3 on host h)")
    found = claim_of(str(tmp_path))
    assert (found.job, found.title) == ("12ab", "train.py (launched by process 3 on host h)")
