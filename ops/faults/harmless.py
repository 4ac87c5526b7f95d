"""Faults that a job survives without a restart: a lost copy of a worker, and a second job in its checkpoint folder."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from ops.faults.running_job import RunningJob, wait

_IMAGE = "parallax-image"  # process name of the copy of a worker that a checkpoint is written from
_SKIPPED = "is skipped: worker"
_REFUSED = "only one job may use a folder at a time"
_LOOK_S = 0.005  # a small checkpoint is written within a few hundredths of a second
_LIMIT_S = 180.0
_SHOWN = 2000


def lose_image(job: RunningJob, number: int) -> str:
    """Signals the copies that checkpoints are written from, until a checkpoint is skipped.

    Args:
        job: a job whose ranks train.
        number: SIGKILL, or SIGSTOP, which the job detects by a time limit.

    Returns:
        The problem; empty if a checkpoint was skipped.
    """
    ranks = {one.pid for one in job.seen() if one.rank is not None and not one.is_agent}
    before, until_s = job.said().count(_SKIPPED), time.monotonic() + _LIMIT_S
    while time.monotonic() < until_s:
        image = next(iter(_images(ranks)), None)
        if image is None:
            time.sleep(_LOOK_S)
            continue
        with contextlib.suppress(ProcessLookupError):  # it has been read and has ended meanwhile
            os.kill(image, number)
        if not wait(partial(_is_gone, image), _LIMIT_S):
            return f"the copy, process {image}, still exists"
        if wait(lambda: job.said().count(_SKIPPED) > before, 1.0):
            return ""
    return "no checkpoint was skipped"


def start_second_job(folder: Path, checkpoints: Path, is_there: Callable[[], bool]) -> str:
    """Starts a second job with the same checkpoint folder, on this machine. It must be refused.

    Args:
        folder: for the second job's output.
        checkpoints: the checkpoint folder.
        is_there: returns whether the first job still runs.

    Returns:
        The problem; empty if the second job was refused while the first one ran.
    """
    folder.mkdir()
    argv = ["ops.faults.training", str(folder), "local", "workers", str(checkpoints)]
    second = RunningJob(folder, str(folder), argv, None)
    try:
        if not wait(lambda: second.process.poll() is not None, _LIMIT_S):
            return f"the second job was not refused: {second.said()[-_SHOWN:]}"
        if not is_there():
            return "the first job ended"
        is_refused = second.process.returncode == 1 and _REFUSED in second.said()
        return "" if is_refused else f"status {second.process.returncode}: {second.said()[-_SHOWN:]}"
    finally:
        second.kill()


def _images(parents: Iterable[int]) -> list[int]:
    """Returns the live copies of some processes."""
    wanted = set(parents)
    found = [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()]
    return [pid for pid in found if _is_image(pid) and _parent(pid) in wanted]


def _is_image(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip() == _IMAGE and _state(pid) != "Z"
    return False


def _is_gone(pid: int) -> bool:
    return not _is_image(pid)


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]


def _parent(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    return 0


HARMLESS = {
    "image killed": lambda job: lose_image(job, signal.SIGKILL),
    "image stopped": lambda job: lose_image(job, signal.SIGSTOP),
}
"""Fault -> function that injects it into a job and returns any problem."""
