"""Calibrates, plans and measures, one link rate after the other; files that exist are kept."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ops.bench.jobs import commands
from ops.bench.race.field import NotRunning
from ops.bench.race.place import ROOT, InLab
from ops.bench.regret.cases import Case, Model, case_from_json
from ops.lab import Lab
from ops.lab.rates import mbit

AT_ONCE = 4
"""Cases per job, so that not every case costs a start."""

_LAST_LINES = 25


@dataclass(frozen=True, slots=True)
class Wanted:
    """The settings of a measurement.

    Attributes:
        models: the cases' models.
        rates: link rates, bytes per second.
        hosts: number of hosts, with a worker and a server on each.
        plans: most plans measured per case.
        rounds: turns of each plan.
        turn_s: approximate seconds of a turn.
        folder: the folder of all files.
    """

    models: tuple[Model, ...]
    rates: tuple[int, ...]
    hosts: int
    plans: int
    rounds: int
    turn_s: float
    folder: Path

    def calibration(self, rate: int) -> Path:
        """Returns the file of the hosts' profile at a link rate."""
        return self.folder / f"calibration-{self.hosts}-{mbit(rate)}.json"

    def case(self, model: Model) -> Path:
        """Returns the file of a case with its plans."""
        return self.folder / f"case-{model.number}.json"

    def done(self, model: Model) -> Path:
        """Returns the file of a case with its step times."""
        return self.case(model).with_suffix(".measured.json")


def measured_cases(wanted: Wanted, may_begin: Callable[[], bool], tell: Callable[[str], None]) -> tuple[Case, ...]:
    """Measures cases in order while time allows, and returns the complete ones.

    Args:
        wanted: the settings.
        may_begin: returns whether there is time for one more piece.
        tell: receives a line for each piece.

    Raises:
        NotRunning: a command or the job fails.
    """
    for rate in rates_of(wanted):
        if any(not wanted.done(m).exists() for m in wanted.models if m.rate_bytes_per_s == rate) and may_begin():
            with Lab(wanted.hosts, rate) as lab:
                place = InLab(lab)
                _plan_at(wanted, place, rate, tell)
                _measure_at(wanted, place, rate, may_begin, tell)
    return _read(wanted.done(model) for model in wanted.models)


def planned_cases(wanted: Wanted, may_begin: Callable[[], bool], tell: Callable[[str], None]) -> tuple[Case, ...]:
    """Plans the cases as `measured_cases` does, without measuring them.

    Raises:
        NotRunning: a command fails.
    """
    for rate in rates_of(wanted):
        if any(not wanted.case(m).exists() for m in wanted.models if m.rate_bytes_per_s == rate) and may_begin():
            with Lab(wanted.hosts, rate) as lab:
                _plan_at(wanted, InLab(lab), rate, tell)
    return _read(wanted.case(model) for model in wanted.models)


def rates_of(wanted: Wanted) -> tuple[int, ...]:
    """Returns the distinct rates of the models."""
    return tuple(dict.fromkeys(model.rate_bytes_per_s for model in wanted.models))


def _read(files: Iterable[Path]) -> tuple[Case, ...]:
    return tuple(case_from_json(file.read_text(encoding="utf-8")) for file in files if file.exists())


def _plan_at(wanted: Wanted, place: InLab, rate: int, tell: Callable[[str], None]) -> None:
    wanted.folder.mkdir(parents=True, exist_ok=True)
    if not wanted.calibration(rate).exists():
        tell(f"calibrating {wanted.hosts} hosts at {mbit(rate)}")
        commands.calibrate(place, wanted.calibration(rate))
    own = [model for model in wanted.models if model.rate_bytes_per_s == rate]
    if any(not wanted.case(model).exists() for model in own):
        tell(f"planning {len(own)} models at {mbit(rate)}")
        plan_models(wanted, wanted.calibration(rate), rate)


def _measure_at(
    wanted: Wanted, place: InLab, rate: int, may_begin: Callable[[], bool], tell: Callable[[str], None]
) -> None:
    own = [model for model in wanted.models if model.rate_bytes_per_s == rate]
    missing = [wanted.case(model) for model in own if not wanted.done(model).exists()]
    while missing and may_begin():
        now, missing = missing[:AT_ONCE], missing[AT_ONCE:]
        tell(f"measuring {', '.join(file.stem for file in now)} at {mbit(rate)}")
        measure(wanted, place, now)


def plan_models(wanted: Wanted, cluster: Path, rate: int) -> None:
    """Plans all models at a link rate, in a separate process."""
    rates = map(str, wanted.rates)
    words = (str(wanted.folder), str(cluster), str(wanted.plans), str(len(wanted.models)), str(rate), *rates)
    argv = [sys.executable, "-m", "ops.bench.regret.plans", *words]
    check(subprocess.run(argv, env=environment(), cwd=ROOT, capture_output=True, text=True, check=False), "planning")


def measure(wanted: Wanted, place: InLab, files: Sequence[Path]) -> None:
    """Measures the cases in these files by one job."""
    words = (str(place.lab.resource_file(1)), "servers", str(wanted.rounds), str(wanted.turn_s), *map(str, files))
    argv = [sys.executable, "-m", "ops.bench.jobs.launch_module", "ops.bench.regret.ranks", *words]
    options = {"env": environment(), "cwd": ROOT, "stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE}
    check(place.lab.run_on(place.hosts[0], argv, stderr=subprocess.STDOUT, text=True, **options), "the job")


def check(done: subprocess.CompletedProcess[str], what: str) -> None:
    """Raises NotRunning with the last lines of a command that failed."""
    if done.returncode:
        lines = [*(done.stdout or "").splitlines(), *(done.stderr or "").splitlines()][-_LAST_LINES:]
        raise NotRunning(f"{what} ended with exit status {done.returncode}\n" + "\n".join(lines))


def environment() -> dict[str, str]:
    """Returns the environment of the benchmark's own processes."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONPATH": path}
