"""What is said of a checkpoint folder that does not answer, and that the job is ended after a limit."""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import tensorflow as tf

from parallax.runtime.checkpoint import checkpoint_io
from parallax.runtime.checkpoint.format import folder, folder_owner, writer
from parallax.runtime.checkpoint.format.folder_owner import claim_of
from parallax.runtime.checkpoint.format.folder_watch import FolderWatch
from parallax.runtime.supervisor.control import CONTROL_FD, OVERDUE, unseal
from tests.runtime.checkpoint.test_owner import LIMITS
from tests.runtime.checkpoint.test_storage import job, loaded_step, save

WATCH = FolderWatch("/kept", math.inf, first_s=0.05, again_s=0.05)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The end of the control pipe that a supervisor reads."""
    read, written = os.pipe()
    os.set_blocking(read, False)
    monkeypatch.setenv(CONTROL_FD, str(written))
    yield read
    os.close(written)
    os.close(read)


def messages(told: int) -> list[dict[str, str]]:
    try:
        return [json.loads(unseal(line)) for line in os.read(told, 1 << 16).splitlines()]
    except BlockingIOError:
        return []


def take(found: list[dict[str, str]], told: int) -> bool:
    """Takes in what was told since; whether anything ever was."""
    found += messages(told)
    return bool(found)


def wait_for(there: Callable[[], bool]) -> None:
    until_s = time.monotonic() + 60
    while not there() and time.monotonic() < until_s:
        time.sleep(0.01)


def test_a_line_says_what_waits_again_and_again_and_that_the_folder_answers(
    capfd: pytest.CaptureFixture[str], told: int
) -> None:
    said = ""

    def hears(words: str, count: int) -> bool:
        nonlocal said
        said += capfd.readouterr().err
        return said.count(words) >= count

    with WATCH.doing("The checkpoint of step 7 is overdue"):
        wait_for(lambda: hears("step 7 is overdue: its folder /kept has not responded on host", 3))
    wait_for(lambda: hears("The checkpoint folder /kept responds again", 1))
    assert said.count("is overdue") >= 3 and "Training continues" not in said and messages(told) == []
    thread = threading.Thread(target=hangs_for_a_while)
    thread.start()
    wait_for(lambda: hears("Training continues until the next checkpoint is due", 1))
    thread.join()
    assert "Training continues until" in said


def hangs_for_a_while() -> None:
    with WATCH.doing("The checkpoint of step 8 is overdue"):
        time.sleep(0.5)


def test_what_answers_in_time_has_no_line(capfd: pytest.CaptureFixture[str], told: int) -> None:
    for _ in range(20):
        with replace(WATCH, first_s=30.0).doing("The checkpoint of step 7 is overdue"):
            pass
    assert capfd.readouterr().err == "" and messages(told) == []


def test_after_the_limit_the_launcher_is_told_once_which_checkpoint_and_folder(told: int) -> None:
    found: list[dict[str, str]] = []
    with replace(WATCH, timeout_s=0.2).doing("The checkpoint of step 7 is overdue"):
        wait_for(lambda: take(found, told))
        time.sleep(0.3)
    found += messages(told)
    assert [one["kind"] for one in found] == [OVERDUE]
    assert found[0]["what"].startswith("The checkpoint of step 7 is overdue: its folder /kept has not responded")


PLACES = {
    "making the folder": (tf.io.gfile, "makedirs"),
    "looking for what is left": (tf.io.gfile, "glob"),
    "writing": (writer, "run"),
    "forcing to the disk": (writer, "fsync_path"),
    "moving to the name": (tf.io.gfile, "rename"),
    "naming the latest": (writer, "mark_latest"),
    "deleting older ones": (folder, "delete"),
    "the owner's mark": (folder_owner, "_read"),
    "finding what to read": (folder, "_state"),
    "reading": (checkpoint_io, "read_rows"),
}


@pytest.mark.parametrize("place", PLACES)
def test_wherever_the_folder_hangs_it_is_noticed(
    tmp_path: Path, told: int, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    own = replace(job(tmp_path, retention=folder.Retention(1)), timeout_s=0.1)
    claim = claim_of(str(tmp_path))
    claim.limits = LIMITS
    own = replace(own, claim=claim)
    save(own, 1)
    module, name = PLACES[place]
    usual = getattr(module, name)
    found: list[dict[str, str]] = []

    def hangs(*arguments: object, **keywords: object) -> object:
        if not found:
            wait_for(lambda: take(found, told))
        return usual(*arguments, **keywords)

    monkeypatch.setattr(module, name, hangs)
    save(own, 2)
    assert loaded_step(own) == 2
    assert {one["kind"] for one in found} == {OVERDUE} and str(tmp_path) in found[0]["what"]
    own.release_folder()
