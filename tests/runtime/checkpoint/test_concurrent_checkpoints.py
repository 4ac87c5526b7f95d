"""What the loop of one worker hears of checkpoints that are written beside it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from parallax.base.errors import CheckpointError
from parallax.runtime.checkpoint.checkpoint_io import Storage
from parallax.runtime.checkpoint.checkpoints import Checkpoints
from parallax.runtime.checkpoint.concurrent_checkpoints import ConcurrentCheckpoints
from parallax.runtime.checkpoint.format.folder import latest
from parallax.runtime.checkpoint.format.stored_tensors import stored_variables
from parallax.runtime.checkpoint.format.writer import Writer
from parallax.runtime.checkpoint.hook import CheckpointHook
from parallax.runtime.checkpoint.rows.access_to_rows import build_access
from parallax.runtime.checkpoint.rows.freeze import FrozenValue, freezer
from parallax.runtime.checkpoint.rows.row_places import Places
from parallax.settings.parts import CheckPointConfig
from tests.runtime.checkpoint.test_storage import Alone

v1 = tf.compat.v1


class Lonely(Alone):
    """A communicator of one worker, with what threads ask of it."""

    def gather(self, value: Any) -> list[Any]:
        return [value]


@dataclass
class Loop:
    """A session with a variable of 5 x 3, and the hook that saves it."""

    session: Any
    table: Any
    hook: CheckpointHook
    folder: Path
    may_write: threading.Event = field(default_factory=threading.Event)

    @property
    def beside(self) -> ConcurrentCheckpoints:
        assert self.hook.checkpoints.concurrent is not None
        return self.hook.checkpoints.concurrent

    def train_to(self, value: float) -> None:
        self.session.run(self.table.assign(tf.fill([5, 3], float(value))))

    def saved(self, step: int) -> float:
        found = tf.train.load_variable(str(self.folder / f"model.ckpt-{step}"), "table")
        assert (found == found[0, 0]).all()
        return float(found[0, 0])


@pytest.fixture
def loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Loop]:
    with tf.Graph().as_default() as graph, v1.Session() as session:
        table = v1.get_variable("table", [5, 3], initializer=tf.zeros_initializer(), use_resource=True)
        words = v1.get_variable("words", initializer=tf.constant(["a", "b"]), use_resource=True)
        comm: Any = Lonely()
        storage = Storage(str(tmp_path), build_access(stored_variables(graph), Places(), comm), comm)
        beside = ConcurrentCheckpoints(storage, comm, freezer(storage.variables, comm))
        session.run([table.initializer, words.initializer])
        worker: Any = SimpleNamespace(watch=SimpleNamespace(run=lambda *_, **__: nullcontext()))
        config = CheckPointConfig(tmp_path, save_ckpt_steps=1)
        made = Loop(
            session, table, CheckpointHook(Checkpoints(config, storage, None, "", concurrent=beside), worker), tmp_path
        )
        begin = Writer.begin

        def begins_when_it_may(writer: Writer) -> None:
            assert made.may_write.wait(60)
            begin(writer)

        monkeypatch.setattr(Writer, "begin", begins_when_it_may)
        yield made
        made.may_write.set()
        made.hook.checkpoints.finish()


def test_a_checkpoint_has_the_values_of_its_step_and_the_next_waits_for_it(
    loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    for step in (1, 2, 3):
        loop.train_to(step)
        if step > 1:  # the one before is still held up
            threading.Timer(0.3, loop.may_write.set).start()
        loop.hook._save(loop.session, step)
        loop.train_to(-step)
        loop.may_write.clear()
    loop.may_write.set()
    loop.hook._wait(is_due=False)
    assert [loop.saved(step) for step in (1, 2, 3)] == [1, 2, 3]
    np.testing.assert_array_equal(tf.train.load_variable(latest(str(loop.folder)), "words"), [b"a", b"b"])
    assert caplog.text.count("The next checkpoint was due while that of step 1 was still being written") == 1
    assert "of step 2 was still" not in caplog.text  # it is told once


def test_where_nothing_can_be_frozen_training_waits_and_that_is_told_once(
    loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    loop.may_write.set()
    loop.beside.freezer = "A copy of the process by clone failed: Cannot allocate memory"
    for step in (1, 2):
        loop.train_to(step)
        loop.hook._save(loop.session, step)
        assert loop.saved(step) == step and not loop.beside.is_writing
    assert caplog.text.count("Training waits while checkpoints are written") == 1
    assert "cannot be frozen on worker 0: A copy of the process by clone failed: Cannot allocate" in caplog.text


def test_files_that_cannot_be_written_are_a_warning_and_any_other_error_ends_the_loop(
    loop: Loop, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop.may_write.set()
    (loop.folder / "file").write_text("in the way of a folder")
    usual = loop.beside.storage
    loop.beside.storage = replace(usual, folder=str(loop.folder / "file" / "below"))
    loop.hook._save(loop.session, 1)
    loop.beside.join()
    loop.hook._look()
    assert "Cannot write the checkpoint of step 1 to" in caplog.text and "Training continues" in caplog.text
    assert loop.hook._is_missing and latest(str(loop.folder)) is None
    monkeypatch.setattr(Writer, "add", lambda *_: 1 // 0)
    loop.beside.storage = usual
    loop.hook._save(loop.session, 2)
    loop.beside.join()
    with pytest.raises(CheckpointError, match="step 2 could not be written during training: ZeroDivisionError"):
        loop.hook._look()
    assert loop.beside.step is None


def test_a_lost_image_is_a_warning_and_the_next_checkpoint_is_written(
    loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    loop.train_to(1)
    loop.hook._save(loop.session, 1)
    assert loop.beside._writes is not None and loop.beside._writes.image.process is not None
    os.kill(loop.beside._writes.image.process, signal.SIGKILL)
    loop.may_write.set()
    loop.hook._wait(is_due=False)
    assert "step 1 is skipped: worker 0" in caplog.text and "signal 9 killed it. When" in caplog.text
    assert "Training continues" in caplog.text and loop.hook._is_missing and latest(str(loop.folder)) is None
    loop.train_to(2)
    loop.hook._save(loop.session, 2)
    loop.hook._wait(is_due=False)
    assert loop.saved(2) == 2 and not loop.hook._is_missing and caplog.text.count("is skipped") == 1


def test_workers_that_bring_no_rows_bring_no_marked_ones_either() -> None:
    session, stored, marked = Any, Any, np.array([True, False, True])
    assert FrozenValue(stored, None).read_marked(session, 0, marked) is None
    np.testing.assert_array_equal(FrozenValue(stored, np.arange(5)).read_marked(session, 1, marked), [1, 3])


def test_who_writes_is_said_once_and_again_when_it_changes(capsys: pytest.CaptureFixture[str]) -> None:
    comm = SimpleNamespace(Get_rank=lambda: 0, Get_size=lambda: 3)
    job: Any = SimpleNamespace(storage=SimpleNamespace(comm=comm, folder="/kept"), step_op="step")
    hook = CheckpointHook(job, Any)  # type: ignore[arg-type]
    for writers in ((0, 1, 2), (0, 1, 2), (), (0, 2), (0,)):
        hook._tell_writers(writers)
    said = [line.partition("INFO: ")[2] for line in capsys.readouterr().err.splitlines()]
    begin = "Sharded rows of checkpoints are written by "
    assert said == [
        f"{begin}all 3 workers, each its share.",
        f"{begin}workers 0, 2: worker 1 cannot write to /kept as worker 0 sees it.",
        f"{begin}worker 0: workers 1, 2 cannot write to /kept as worker 0 sees it.",
    ]
