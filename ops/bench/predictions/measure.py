"""Calibrates, predicts and measures in labs, piece by piece; pieces that exist are kept.

Every piece is a file in a folder: a calibration, a model's profile, a case. So a run that was interrupted, or that ran
out of time, can be resumed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ops.bench.jobs import commands
from ops.bench.jobs.steps import Rounds, step_seconds
from ops.bench.predictions.results import Case, case_from_json
from ops.bench.race.accelerators import MODEL, twin_sizes
from ops.bench.race.place import InLab
from ops.bench.race.turns import Task
from ops.lab import Lab
from ops.lab.rates import mbit
from parallax.plans.plan import read_plan

PROFILED_STEPS = 8


@dataclass(frozen=True, slots=True)
class Wanted:
    """The settings of a measurement.

    Attributes:
        models: names of a race's models or, with accelerators, of the twin's networks.
        rates: calibrated link rates, bytes per second.
        held_out: link rate at which steps are measured, bytes per second.
        from_hosts: number of hosts that are calibrated, and measured first.
        hosts: number of hosts that are only measured.
        rounds: rounds of each measurement.
        folder: the folder of the pieces.
        accelerators: the cluster whose twin is predicted; None if cores compute.
    """

    models: tuple[str, ...]
    rates: tuple[int, ...]
    held_out: int
    from_hosts: int
    hosts: int
    rounds: Rounds
    folder: Path
    accelerators: str | None = None

    @property
    def sizes(self) -> tuple[int, ...]:
        """The numbers of hosts on which steps are measured."""
        return tuple(dict.fromkeys((self.from_hosts, self.hosts)))

    def task(self, place: InLab, piece: str, model: str, **config: object) -> Task:
        """Returns the task of a model's piece: a job with one worker per host."""
        raced, sizes = model, dict[str, Any]()
        if self.accelerators is not None:
            raced, sizes = MODEL, twin_sizes(self.accelerators, model, {})
        return commands.task_of(place, f"{piece}-{model}", raced, sizes, config)

    def calibration(self, rate: int) -> Path:
        """Returns the file of the calibration at a link rate."""
        return self.folder / f"calibration-{self.from_hosts}-{mbit(rate)}.json"

    def profile(self, model: str) -> Path:
        """Returns the file of a model's profile."""
        return self.folder / f"profile-{model}-{max(self.sizes)}.json"

    def case(self, model: str, hosts: int) -> Path:
        """Returns the file of a model's predicted and measured step times."""
        return self.folder / f"case-{model}-{hosts}-{mbit(self.held_out)}.json"


def cases(wanted: Wanted, may_begin: Callable[[], bool], tell: Callable[[str], None]) -> tuple[Case, ...]:
    """Measures cases in order while time allows, and returns the complete ones.

    Args:
        wanted: the settings.
        may_begin: returns whether there is time for one more piece.
        tell: receives a line for each piece.

    Raises:
        NotRunning: a command or a job fails.
    """
    wanted.folder.mkdir(parents=True, exist_ok=True)
    for rate in wanted.rates:
        if not wanted.calibration(rate).exists() and may_begin():
            tell(f"calibrating {wanted.from_hosts} hosts at {mbit(rate)}")
            with Lab(wanted.from_hosts, rate) as lab:
                commands.calibrate(InLab(lab), wanted.calibration(rate))
    if all(wanted.calibration(rate).exists() for rate in wanted.rates):
        for hosts in wanted.sizes:
            _measure(wanted, hosts, may_begin, tell)
    return tuple(_read(wanted))


def _measure(wanted: Wanted, hosts: int, may_begin: Callable[[], bool], tell: Callable[[str], None]) -> None:
    missing = [model for model in wanted.models if not wanted.case(model, hosts).exists()]
    if not missing or not may_begin():
        return
    with Lab(hosts, wanted.held_out) as lab:
        place = InLab(lab)
        cluster = place.folder / "derived.json"
        calibrations = [wanted.calibration(rate) for rate in wanted.rates]
        commands.derive(place, calibrations, cluster, shares_cores=wanted.accelerators is None)
        for model in missing:
            if not may_begin():
                return
            if not wanted.profile(model).exists():
                tell(f"profiling {model}")
                task = replace(wanted.task(place, "profile", model), workers=max(wanted.sizes))
                commands.profile(place, task, PROFILED_STEPS, wanted.profile(model))
            case = _case(wanted, place, model, cluster)
            wanted.case(model, hosts).write_text(case.to_json(), encoding="utf-8")
            tell(
                f"{model} on {hosts} hosts: {1e3 * case.predicted_s:.1f} ms predicted, {1e3 * case.measured_s:.1f} ms "
                "measured"
            )


def _case(wanted: Wanted, place: InLab, model: str, cluster: Path) -> Case:
    """Plans a model, and times the steps of a job that runs this plan."""
    file = place.folder / f"plan-{model}.json"
    task = wanted.task(place, "plan", model)
    commands.plan(place, task, cluster, wanted.profile(model), file)
    prediction = read_plan(file).prediction
    if prediction.step_s is None:
        raise ValueError(f"The plan of {model} has no predicted step: {prediction.unknown}.")
    task = wanted.task(place, "job", model, plan_file=str(file))
    (rounds_s,) = step_seconds(place, [task], wanted.rounds)
    phases = tuple((phase.name, phase.end_s - phase.start_s) for phase in prediction.phases)
    return Case(model, len(place.hosts), wanted.held_out, prediction.step_s, phases, rounds_s)


def _read(wanted: Wanted) -> Iterator[Case]:
    for hosts in wanted.sizes:
        for file in (wanted.case(model, hosts) for model in wanted.models):
            if file.exists():
                yield case_from_json(file.read_text(encoding="utf-8"))


def missing_cases(wanted: Wanted, measured: Sequence[Case]) -> int:
    """Returns the number of cases that are not measured yet."""
    return len(wanted.models) * len(wanted.sizes) - len(measured)
