"""Which checkpoint is read, which stay, and what a full disk does, in one process with variables held as arrays."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from parallax.base.errors import CheckpointError
from parallax.entry import cli
from parallax.runtime.checkpoint.checkpoint_io import Storage
from parallax.runtime.checkpoint.checkpoints import Checkpoints
from parallax.runtime.checkpoint.format.folder import FilesFailed, Retention, candidates
from parallax.runtime.checkpoint.format.stored_tensors import CheckpointEntry
from parallax.runtime.checkpoint.hook import CheckpointHook
from parallax.settings.parts import CheckPointConfig

HOUR_S = 3600.0


class Alone:
    """A communicator of one worker."""

    def Get_rank(self) -> int:  # noqa: N802
        return 0

    def Ibarrier(self) -> Any:  # noqa: N802
        return SimpleNamespace(Test=lambda: True)

    def bcast(self, value: Any) -> Any:
        return value

    def allgather(self, value: Any) -> list[Any]:
        return [value]


@dataclass
class Array:
    """A variable whose rows are an array's."""

    stored: CheckpointEntry
    value: Any

    def read(self, session: Any, first: int, count: int) -> Any:
        return self.value[first : first + count] if self.stored.shape else self.value

    def write(self, session: Any, first: int, count: int, rows: Any) -> None:
        if self.stored.shape:
            self.value[first : first + count] = rows
        else:
            self.value = rows


def job(folder: Path, rows: int = 5, retention: Retention | None = None) -> Storage:
    """A table of [rows, 3] and a counter."""
    held = (
        Array(
            CheckpointEntry("emb", "emb", "float32", 4, (rows, 3), (rows, 3), (0, 0), False),
            np.zeros((rows, 3), np.float32),
        ),
        Array(CheckpointEntry("step", "step", "int64", 8, (), (), (), False), np.array(0)),
    )
    return Storage(str(folder), held, Alone(), 2**20, retention or Retention())  # type: ignore[arg-type]


def save(storage: Storage, *steps: int) -> None:
    for step in steps:
        table, counter = storage.variables
        table.value[:] = step + 1  # type: ignore[attr-defined]
        counter.value = np.array(step)  # type: ignore[attr-defined]
        storage.save(None, step)


def loaded_step(storage: Storage) -> int:
    """What was read, all of it of one step."""
    table, counter = storage.variables
    table.value[:], counter.value = -1, -1  # type: ignore[attr-defined]
    moved = storage.load(None)
    assert moved is not None
    step = int(counter.value)  # type: ignore[attr-defined]
    assert (table.value == step + 1).all() and moved.prefix.endswith(f"-{step}")  # type: ignore[attr-defined]
    return step


def steps_in(folder: Path) -> list[int]:
    return sorted(int(path.stem.rpartition("-")[2]) for path in folder.glob("*.index"))


@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.slow)], ids=["some bytes", "every byte"])
def test_a_damaged_checkpoint_is_skipped_and_the_one_before_it_taken(tmp_path: Path, stride: int) -> None:
    storage = job(tmp_path)
    save(storage, 1, 2)
    assert loaded_step(storage) == 2
    for file in tmp_path.glob("model.ckpt-2.*"):
        content = file.read_bytes()
        flipped = (
            content[:at] + bytes([content[at] ^ 16]) + content[at + 1 :] for at in range(0, len(content), stride)
        )
        truncated = (content[: len(content) * part // 50] for part in range(0, 50, stride))
        for wrong in (*flipped, *truncated):
            file.write_bytes(wrong)
            assert loaded_step(storage) == 1
        file.unlink()
        moved = storage.load(None)
        assert moved is not None and f"{file}: cannot read the checkpoint file: " in moved.notes[0]
        file.write_bytes(content)
    assert loaded_step(storage) == 2


def test_what_is_skipped_is_said_where_the_job_says_from_where_it_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    storage = job(tmp_path)
    save(storage, 1, 2)
    (tmp_path / "model.ckpt-2.index").write_bytes(b"none")
    checkpoints = Checkpoints(CheckPointConfig(tmp_path, 1), storage, None, "step")
    checkpoints.load(SimpleNamespace(run=lambda _: 1))  # type: ignore[arg-type]
    skipped, resumed = capsys.readouterr().out.splitlines()
    assert (
        skipped.startswith(f"Skipped {tmp_path}/model.ckpt-2: ")
        and "its footer is invalid, as of a truncated file" in skipped
    )
    assert resumed == f"Resumed from step 1: {tmp_path}/model.ckpt-1"


def test_no_whole_checkpoint_is_an_error_and_no_file_that_names_them_a_new_start(tmp_path: Path) -> None:
    storage = job(tmp_path)
    save(storage, 1, 2)
    for file in tmp_path.glob("*.index"):
        file.write_bytes(b"")
    with pytest.raises(CheckpointError, match="is complete. Skipped .*-2: .*Skipped .*-1: "):
        storage.load(None)
    (tmp_path / "checkpoint").unlink()
    assert storage.load(None) is None


@pytest.mark.parametrize("stride", [5, pytest.param(1, marks=pytest.mark.slow)], ids=["some bytes", "every byte"])
def test_a_damaged_file_of_names_hides_no_checkpoint(tmp_path: Path, stride: int) -> None:
    storage = job(tmp_path)
    save(storage, 1, 2)
    names = tmp_path / "checkpoint"
    content = names.read_bytes()
    for at in range(0, len(content), stride):
        for wrong in (
            content[:at],
            *(content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :] for bit in (0, 7)),
        ):
            names.write_bytes(wrong)
            assert loaded_step(storage) in (1, 2), wrong
    names.write_bytes(b"\xff")
    save(storage, 3)
    assert [Path(prefix).name for prefix in candidates(str(tmp_path))] == [f"model.ckpt-{n}" for n in (3, 2, 1)]
    names.write_text('model_checkpoint_path: "model.ckpt-1"\nall_model_checkpoint_paths: "model.ckpt-1"\n')
    assert loaded_step(storage) == 1  # as the user has named it


def test_the_last_ones_stay_and_before_them_one_every_so_many_hours() -> None:
    hours = [HOUR_S * hour for hour in (0, 1, 2, 3, 4, 5, 6)]
    assert Retention().find_expired(hours) == []
    assert Retention(3).find_expired(hours) == [0, 1, 2, 3]
    assert Retention(10).find_expired(hours) == []
    assert Retention(2, 2.0).find_expired(hours) == [1, 3]
    stayed = [hours[0], hours[2], *hours[4:], 7 * HOUR_S]
    assert Retention(2, 2.0).find_expired(stayed) == [3]  # those that stayed before stay


def test_what_need_not_stay_is_deleted_and_no_longer_named(tmp_path: Path) -> None:
    storage = job(tmp_path, retention=Retention(2, 1.0))
    for step in range(5):
        save(storage, step)
        index = tmp_path / f"model.ckpt-{step}.index"
        os.utime(index, (1e9 + step * HOUR_S / 2,) * 2)
    (tmp_path / "mine-7.index").write_bytes(b"")
    save(storage, 5)
    assert steps_in(tmp_path) == [0, 2, 4, 5, 7]
    found = [Path(prefix).name for prefix in candidates(str(tmp_path))]
    assert found == ["model.ckpt-5", "model.ckpt-4", "model.ckpt-2", "model.ckpt-0"]
    assert tf.train.latest_checkpoint(str(tmp_path)) == str(tmp_path / "model.ckpt-5")


def test_the_command_lists_and_verifies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def said(action: str, folder: Path, status: int) -> list[str]:
        with pytest.raises(SystemExit) as ended:
            cli.main(["checkpoint", action, str(folder)])
        assert ended.value.code == status
        found = capsys.readouterr()
        return (found.out + found.err).splitlines()

    save(job(tmp_path), 8, 10)
    first, second = said("ls", tmp_path, 0)
    assert first.startswith(f"{tmp_path}/model.ckpt-8: ") and first.endswith("2 tensors, 68 B")
    assert second.startswith(f"{tmp_path}/model.ckpt-10: ") and second.endswith("2 tensors, 68 B, the latest")
    assert all(": whole, 68 B checked at " in line for line in said("verify", tmp_path, 0))
    (tmp_path / "model.ckpt-8.data-00000-of-00001").write_bytes(bytes(68))
    damaged, whole = said("verify", tmp_path, 1)
    assert "model.ckpt-8: damaged: " in damaged and "a wrong checksum" in damaged and ": whole" in whole
    (tmp_path / "model.ckpt-8.index").write_bytes(b"")
    assert "model.ckpt-8: damaged: " in said("ls", tmp_path, 0)[0]
    assert "has no checkpoints" in said("ls", tmp_path / "model.ckpt-8.index", 1)[0]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 kB, which only root can make."""
    folder = tmp_path / "disk"
    folder.mkdir()
    argv = ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(folder)]
    if os.geteuid() or subprocess.run(argv, capture_output=True, check=False).returncode:
        pytest.skip("a file system of its own needs root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_takes_older_checkpoints_and_then_warns_while_training_goes_on(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    storage = job(small_disk, rows=4000, retention=Retention(5))  # 48 kB each
    save(storage, 0, 1, 2, 3)
    table = storage.variables[0]
    table.value[:], moved = 5, storage.save(None, 4)  # type: ignore[attr-defined]
    assert "No space left on device" in moved.notes[0] and "Deleted to make room: " in moved.notes[0]
    assert steps_in(small_disk) == [3, 4]
    Retention(1).apply(str(small_disk))
    (small_disk / "other").write_bytes(bytes(os.statvfs(small_disk).f_bavail * 4096 - 20_000))
    config = CheckPointConfig(small_disk, save_ckpt_steps=1)
    worker: Any = SimpleNamespace(watch=SimpleNamespace(run=lambda *_, **__: nullcontext()))
    hook = CheckpointHook(Checkpoints(config, storage, None, "step"), worker)
    hook._save(None, 5)
    assert "Training continues" in caplog.text and "Cannot write the checkpoint of step 5 to" in caplog.text
    assert steps_in(small_disk) == [4] and not list(small_disk.glob("*unfinished*"))
    with pytest.raises(FilesFailed, match="No space left"):
        hook._save(None, 5, may_fail=False)
    (small_disk / "other").unlink()
    hook._save(None, 6)
    assert steps_in(small_disk) == [4, 6]
