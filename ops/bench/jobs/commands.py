"""Parallax's own commands, run on a lab's first host as a user would run them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ops.bench.on_lab import output_of
from ops.bench.race.field import NotRunning
from ops.bench.race.place import InLab
from ops.bench.race.turns import Task, write_task

_SCRIPT = Path(__file__).with_name("script.py")
_FEEDS = Path(__file__).with_name("feeds.py")


def calibrate(place: InLab, output: Path) -> None:
    """Runs the quick calibration of a lab's hosts, and writes their profile."""
    _parallax(place, "calibrate", "--quick", "-r", str(place.lab.resource_file(1)), "-o", str(output))


def derive(place: InLab, calibrations: Sequence[Path], output: Path, *, shares_cores: bool) -> None:
    """Derives the profile of a lab's hosts from calibrations of other hosts on the same cores, and writes it.

    Args:
        place: the lab.
        calibrations: existing calibration files.
        output: the file to write.
        shares_cores: whether workers compute on those cores rather than on accelerators.
    """
    named = [word for file in calibrations for word in ("--from", str(file))]
    resource = str(place.lab.resource_file(1))
    sharing = ("--share-cores",) if shares_cores else ()
    _parallax(place, "calibrate", *named, *sharing, "-r", resource, "-o", str(output))


def profile(place: InLab, task: Task, steps: int, output: Path) -> None:
    """Profiles the model of a task: touched rows per step, and the compute time of one process alone."""
    write_task(task)
    wanted = ("--workers", str(task.workers), "--steps", str(steps), "--compute", "--feeds", f"{_FEEDS}:batch")
    _parallax(place, "profile", *wanted, "-o", str(output), str(_SCRIPT), str(task.file))


def plan(place: InLab, task: Task, cluster: Path, model: Path, output: Path) -> None:
    """Plans a task's model for a lab's hosts by predicted seconds."""
    write_task(task)
    known = ("--cluster", str(cluster), "--profile", str(model), "-r", str(place.lab.resource_file(1)))
    _parallax(place, "plan", *known, "--json", str(output), str(_SCRIPT), str(task.file))


def task_of(
    place: InLab, name: str, model: str, sizes: Mapping[str, object], config: Mapping[str, object] | None = None
) -> Task:
    """Returns the task of a job with one worker per host; `config` has more settings of its `parallax.Config`."""
    more = {"environment": {}, "config": dict(config or {})}
    return Task("parallax", model, dict(sizes), str(place.folder / name), len(place.hosts), 1, 2, more)


def _parallax(place: InLab, *words: str) -> None:
    """Runs a command on the first host.

    Raises:
        NotRunning: the command fails; the text has its last lines.
    """
    try:
        output_of(place.lab, words)
    except SystemExit as error:
        raise NotRunning(str(error)) from error
