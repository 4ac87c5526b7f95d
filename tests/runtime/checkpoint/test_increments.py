"""Increments written and read in one process, with variables held as arrays: what a chain gives, whatever is lost."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
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
from parallax.runtime.checkpoint.collective_write import CheckpointResult
from parallax.runtime.checkpoint.commands.command import compact
from parallax.runtime.checkpoint.format.bundle import Bundle
from parallax.runtime.checkpoint.format.chain import chain_of, increments_in, state_of
from parallax.runtime.checkpoint.format.folder import FilesFailed, Retention, candidates
from parallax.runtime.checkpoint.format.links import HEADER
from parallax.runtime.checkpoint.format.stored_tensors import CheckpointEntry
from parallax.runtime.checkpoint.hook import CheckpointHook
from parallax.runtime.checkpoint.positions import NAMES, WORKERS, _digest, read_positions
from parallax.runtime.checkpoint.rows.touched_tables import Marks, Succession
from parallax.settings.parts import CheckPointConfig
from tests.runtime.checkpoint.test_storage import Alone, Array

ROWS, CHUNK_BYTES = 40, 64  # five rows of the table in a chunk


class AloneInBytes(Alone):
    def Bcast(self, values: Any) -> None:  # noqa: N802
        pass


class Rows(Array):
    """An array of which chosen rows are read."""

    def read_marked(self, session: Any, first: int, marked: Any) -> Any:
        return self.value[first : first + len(marked)][marked]


@dataclass
class Forgetting:
    """A session that runs the op which forgets touched rows, and nothing else."""

    marks: Any

    def run(self, ops: Any) -> None:
        assert ops == ("clear",)
        self.marks[:] = False


class Job:
    """A table in two parts with a slot, a dense variable and a counter, with increments in a folder."""

    def __init__(
        self, folder: Path, whole_every: int = 100, retention: Retention | None = None, workers: int = 0
    ) -> None:
        self.random = np.random.RandomState(1)
        # The second part begins at row 40 of the whole; the slot has another width than the table.
        self.parts = [Rows(part("emb", number, 3), np.zeros((ROWS, 3), np.float32)) for number in range(2)]
        self.slots = [Rows(part("emb/slot", number, 1), np.ones((ROWS, 1), np.float32)) for number in range(2)]
        dense = Rows(CheckpointEntry("w", "w", "float32", 4, (2,), (2,), (0,), False), np.zeros(2, np.float32))
        self.step = Array(CheckpointEntry("step", "step", "int64", 8, (), (), (), False), np.array(0))
        self.both = np.zeros(2 * ROWS, bool)
        marks = tuple(
            Array(
                CheckpointEntry(f"m{n}", f"m{n}", "bool", 1, (ROWS,), (ROWS,), (0,), False),
                self.both[n * ROWS :][:ROWS],
            )
            for n in range(2)
        )
        self.held = (*self.parts, *self.slots, dense, self.step)
        remembered = Marks(marks, tuple((f"emb/{n}", f"emb/slot/{n}") for n in range(2)), ("clear",))  # type: ignore
        self.storage = Storage(
            str(folder),
            self.held,
            AloneInBytes(),
            CHUNK_BYTES,
            retention or Retention(),
            remembered,  # type: ignore
            positions_of(workers),
        )
        self.session = Forgetting(self.both)
        self.succession = Succession(whole_every)

    def train(self, rows: int = 4) -> None:
        """Changes some rows, and what is not by row."""
        touched = self.random.choice(2 * ROWS, rows, replace=False)
        for row in touched:
            number, local = divmod(int(row), ROWS)
            self.parts[number].value[local] = self.random.rand(3)
            self.slots[number].value[local] += 1
        self.both[touched] = True
        self.held[-2].value[:] += 1
        self.step.value = np.array(int(self.step.value) + 1)

    def save(self, whole: bool = False) -> CheckpointResult:
        step = int(self.step.value)
        moved = self.storage.save(self.session, step, self.succession.following(step, self.storage.comm, whole))
        self.succession.last = moved.header
        return moved

    def load(self) -> CheckpointResult:
        moved = self.storage.load(self.session)
        assert moved is not None
        self.succession.last = moved.header
        return moved

    def state(self) -> list[Any]:
        return [np.array(one.value) for one in self.held]


def part(name: str, number: int, width: int) -> CheckpointEntry:
    return CheckpointEntry(
        f"{name}/{number}", name, "float32", 4, (ROWS, width), (2 * ROWS, width), (number * ROWS, 0), is_part=True
    )


def positions_of(workers: int) -> tuple[Array, ...]:
    """Positions of the job and of one random op, for so many workers; none for none."""
    if not workers:
        return ()
    shape = (workers, 2, 4)
    values = np.arange(8 * workers).reshape(shape)
    return (
        Array(CheckpointEntry(WORKERS, WORKERS, "int64", 8, shape, shape, (0, 0, 0), False), values),
        Array(CheckpointEntry(NAMES, NAMES, "int64", 8, (2,), (2,), (0,), False), np.array([_digest("the job"), 5])),
    )


def read_at(prefix: str) -> list[list[int]] | None:
    """The positions of the job that a checkpoint has, of each worker."""
    found = read_positions(state_of(prefix))
    return None if found is None else found.of("the job").tolist()


def trained(folder: Path, steps: int = 4, **options: Any) -> tuple[Job, list[list[Any]]]:
    """A job with a checkpoint after each step, and its states."""
    job = Job(folder, **options)
    job.save()
    states = [job.state()]
    for _ in range(steps):
        job.train()
        job.save()
        states.append(job.state())
    return job, states


def loaded(folder: Path, wanted: list[Any]) -> CheckpointResult:
    """What another job finds; its state must be the wanted one."""
    job = Job(folder)
    for one in job.held:
        one.value = one.value - 1  # of what is read nothing stays
    moved = job.load()
    for found, expected in zip(job.state(), wanted, strict=True):
        np.testing.assert_array_equal(found, expected)
    return moved


def damage(folder: Path, step: int) -> None:
    """Other bytes in all data files of an increment."""
    for data in folder.glob(f"increment-{step}.data-*"):
        data.write_bytes(bytes(byte ^ 1 for byte in data.read_bytes()))


def test_a_chain_of_twenty_gives_what_a_whole_checkpoint_has(tmp_path: Path) -> None:
    job, states = trained(tmp_path, 20)
    assert [Path(p).name for p in increments_in(str(tmp_path))] == [f"increment-{n}" for n in range(1, 21)]
    assert candidates(str(tmp_path)) == [f"{tmp_path}/model.ckpt-0"]
    moved = loaded(tmp_path, states[-1])
    assert moved.prefix == f"{tmp_path}/increment-20" and moved.notes == () and moved.largest_bytes <= CHUNK_BYTES
    chain = chain_of(f"{tmp_path}/increment-20")
    job.save(whole=True)
    whole = Bundle(f"{tmp_path}/model.ckpt-20")
    for key, tensor in whole.tensors.items():
        if key != HEADER:
            box = (0,) * len(tensor.shape), tensor.shape
            np.testing.assert_array_equal(chain.read(key, *box), whole.read(key, *box), err_msg=key)
    np.testing.assert_array_equal(
        chain.read("emb", (38, 1), (5, 1)), np.concatenate([p.value for p in job.parts])[38:43, 1:2]
    )


def test_an_increment_has_the_touched_rows_and_all_of_what_is_not_by_row(tmp_path: Path) -> None:
    job, _ = trained(tmp_path, 0)
    job.train(rows=3)
    touched = np.flatnonzero(job.both)
    job.save()
    written = Bundle(f"{tmp_path}/increment-1")
    rows = [written.read(k, (0,), t.shape) for k, t in written.tensors.items() if k.startswith("parallax/rows")]
    np.testing.assert_array_equal(np.sort(np.concatenate(rows)), touched)
    assert {"w", "step"} < written.tensors.keys() and "emb" not in written.tensors and not job.both.any()
    job.save()  # of an instant at which nothing was touched since
    assert not any("/rows/" in key or "/values/" in key for key in Bundle(f"{tmp_path}/increment-1").tensors)


def test_after_so_many_one_is_whole_and_takes_its_increments_away_with_it(tmp_path: Path) -> None:
    _, states = trained(tmp_path, 7, whole_every=3, retention=Retention(2))
    names = sorted(path.stem for path in tmp_path.glob("*.index"))
    assert names == ["increment-4", "increment-5", "increment-7", "model.ckpt-3", "model.ckpt-6"]
    assert loaded(tmp_path, states[7]).prefix.endswith("increment-7")


@pytest.mark.parametrize("broken", [1, 3, 4])
def test_the_state_before_a_damaged_increment_is_taken(tmp_path: Path, broken: int) -> None:
    _, states = trained(tmp_path)
    damage(tmp_path, broken)
    moved = loaded(tmp_path, states[broken - 1])
    assert f"Skipped {tmp_path}/increment-{broken}: " in " ".join(moved.notes)


def test_the_state_before_a_missing_increment_is_taken(tmp_path: Path) -> None:
    _, states = trained(tmp_path)
    (tmp_path / "increment-2.index").unlink()
    moved = loaded(tmp_path, states[1])
    assert moved.notes == tuple(
        f"Skipped {tmp_path}/increment-{n}: an increment that it follows does not exist." for n in (3, 4)
    )


def test_without_its_whole_checkpoint_an_increment_is_none(tmp_path: Path) -> None:
    job, states = trained(tmp_path, 2)
    job.save(whole=True)
    job.train()
    job.save()
    (tmp_path / "model.ckpt-2.index").unlink()
    assert loaded(tmp_path, states[2]).prefix == f"{tmp_path}/increment-2"
    (tmp_path / "model.ckpt-0.index").unlink()
    with pytest.raises(CheckpointError, match="No checkpoint in .* is complete"):
        Job(tmp_path).load()


def test_a_job_that_starts_anew_finds_nothing_of_the_one_before(tmp_path: Path) -> None:
    trained(tmp_path, 3)
    (tmp_path / "checkpoint").unlink()
    job = Job(tmp_path)
    assert job.storage.load(job.session) is None  # type: ignore[arg-type]
    job.save()
    assert increments_in(str(tmp_path)) == []  # they followed another checkpoint of this step
    job.train(7)
    job.save()
    assert loaded(tmp_path, job.state()).prefix == f"{tmp_path}/increment-1"


def test_a_job_that_goes_on_from_the_middle_writes_a_chain_of_its_own(tmp_path: Path) -> None:
    trained(tmp_path)
    damage(tmp_path, 3)
    job = Job(tmp_path)
    assert job.load().prefix == f"{tmp_path}/increment-2"
    job.train(9)
    job.step.value = np.array(5)
    job.save()
    assert [Path(p).name for p in increments_in(str(tmp_path))] == ["increment-1", "increment-2", "increment-5"]
    assert loaded(tmp_path, job.state()).notes == ()


def test_rows_of_an_increment_that_could_not_be_written_are_not_lost(tmp_path: Path, monkeypatch: Any) -> None:
    job, _ = trained(tmp_path, 1)
    job.train()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("parallax.runtime.checkpoint.format.writer.run", full)
        with pytest.raises(FilesFailed):
            job.save()
    assert job.both.any()
    job.succession.note_failure()
    job.train()
    assert job.save().prefix == f"{tmp_path}/model.ckpt-3"
    loaded(tmp_path, job.state())


def test_the_commands_know_increments(tmp_path: Path, capsys: Any) -> None:
    job, states = trained(tmp_path, 2)

    def said(*words: str) -> tuple[Any, str]:
        with pytest.raises(SystemExit) as ended:
            cli.main(["checkpoint", *words])
        return ended.value.code, capsys.readouterr().out

    status, listed = said("ls", str(tmp_path))
    assert status == 0 and [line.rpartition("B, ")[2] for line in listed.splitlines()[1:]] == [
        "follows model.ckpt-0",
        "follows increment-1, the latest",
    ]
    assert said("verify", str(tmp_path))[0] == 0
    plain = tmp_path / "plain"
    assert said("export", "--plain", f"{tmp_path}/increment-1", str(plain)) == (0, f"Written: {plain}/model.ckpt-1\n")
    reader = tf.train.load_checkpoint(str(plain))
    np.testing.assert_array_equal(reader.get_tensor("emb"), np.concatenate(states[1][:2]))
    assert set(reader.get_variable_to_shape_map()) == {"emb", "emb/slot", "w", "step"}
    assert said("compact", str(tmp_path)) == (0, f"Whole: {tmp_path}/model.ckpt-2\n")
    assert said("compact", str(tmp_path)) == (0, f"Whole: {tmp_path}/model.ckpt-2\n")
    assert loaded(tmp_path, states[2]).prefix == f"{tmp_path}/model.ckpt-2"
    np.testing.assert_array_equal(
        tf.train.load_variable(f"{tmp_path}/model.ckpt-2", "emb"), np.concatenate(states[2][:2])
    )


@pytest.mark.parametrize(("before", "workers"), [(2, 2), (2, 3), (3, 1), (2, 0), (0, 2)])
def test_a_compacted_state_has_the_positions_of_its_last_increment(tmp_path: Path, before: int, workers: int) -> None:
    """A job of `before` workers writes a chain, and one of `workers` goes on with it; 0 writes no positions."""
    trained(tmp_path, 1, workers=before)
    job = Job(tmp_path, workers=workers)
    job.load()
    job.train()
    for position in job.storage.internal_variables[:1]:
        position.value += 100  # type: ignore[attr-defined]
    job.save()
    wanted = [job.storage.internal_variables[0].value[rank][0].tolist() for rank in range(workers)] or None  # type: ignore[attr-defined]
    assert read_at(f"{tmp_path}/increment-2") == wanted
    prefix, _ = compact(str(tmp_path), CHUNK_BYTES)
    assert read_at(prefix) == wanted
    assert loaded(tmp_path, job.state()).prefix == f"{tmp_path}/model.ckpt-2"


def test_a_compacted_checkpoint_has_each_key_that_the_job_would_have_written(tmp_path: Path) -> None:
    job, _ = trained(tmp_path / "chain", 3, workers=2)
    compacted, _ = compact(str(tmp_path / "chain"), CHUNK_BYTES)
    job.storage = replace(job.storage, folder=str(tmp_path / "whole"))
    whole = job.save(whole=True).prefix
    found, wanted = (state_of(prefix) for prefix in (compacted, whole))
    assert found.tensors.keys() == wanted.tensors.keys() > {WORKERS, NAMES, HEADER}
    for key in wanted.tensors.keys() - {HEADER}:
        box = (0,) * len(wanted.tensors[key].shape), wanted.tensors[key].shape
        np.testing.assert_array_equal(found.read(key, *box), wanted.read(key, *box), err_msg=key)


def test_a_preempted_job_leaves_an_increment_and_a_good_end_a_whole_one(tmp_path: Path) -> None:
    job = Job(tmp_path)
    worker: Any = SimpleNamespace(
        watch=SimpleNamespace(run=lambda *_, **__: nullcontext()), accumulation=SimpleNamespace(pending=0)
    )
    config = CheckPointConfig(tmp_path, save_ckpt_steps=1000, whole_every=10)
    made = Checkpoints(config, job.storage, None, "step", job.succession)  # type: ignore[arg-type]
    hook = CheckpointHook(made, worker)
    job.session.run = lambda op: job.step.value if op is None else Forgetting.run(job.session, op)  # type: ignore
    hook._save(job.session, 0, may_fail=False)
    job.train()
    hook._preemption = SimpleNamespace(leave=lambda step: None)  # type: ignore[assignment]
    hook._leave(job.session, 1)
    assert sorted(path.name for path in tmp_path.glob("*.index")) == ["increment-1.index", "model.ckpt-0.index"]
    loaded(tmp_path, job.state())
    hook.end(job.session)
    assert (tmp_path / "model.ckpt-1.index").exists()
