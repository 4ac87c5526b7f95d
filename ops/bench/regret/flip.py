"""Measures both sides of a printed flip point: on each, the plan for that side should be the faster one.

Candidates are models whose plan states a link rate at which a route changes, with both sides in a range that a lab can
emulate. Each is planned again for links APART times slower and faster than that rate, by the same calibration. Each
side has a predicted difference between the two plans; a model counts by the smaller one. The model with the largest is
measured: both plans on both sides.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ops.bench.race.place import ROOT, InLab
from ops.bench.regret.cases import Case, Model, case_from_json, side_file
from ops.bench.regret.measure import Wanted, check, environment, measure, planned_cases
from ops.lab import Lab
from ops.lab.rates import mbit
from parallax.analysis.whatif.derive_profile import NewHost, derive_profile
from parallax.cluster.profiles import cluster_profile_from_json
from parallax.plans.plan import plan_from_json
from parallax.plans.prediction import LINK

APART = 4.0
LEAST, MOST = 5e6 / 8, 2e9 / 8
"""The range of link rates in a lab, bytes per second."""


@dataclass(frozen=True, slots=True)
class Point:
    """A printed flip point.

    Attributes:
        model: the model whose plan prints it.
        variable: the variable whose route changes.
        route: the route now.
        other: the route on the other side.
        rate: the link rate, bytes per second.
        above: whether the other route is that of faster links.
    """

    model: Model
    variable: str
    route: str
    other: str
    rate: float
    above: bool

    @property
    def title(self) -> str:
        """The flip point as a plan prints it."""
        side = "above" if self.above else "below"
        return f"{self.variable}: {self.route}, but {self.other} {side} {8e-6 * self.rate:.1f} mbit/s"


def points_of(cases: Sequence[Case]) -> list[Point]:
    """Returns the flip points of link rates whose sides a lab can emulate, case by case."""
    points = []
    for case in cases:
        for variable in plan_from_json(case.choices[0].plan).variables:
            for flip in variable.flips:
                inside = flip.quantity == LINK and LEAST * APART <= flip.value <= MOST / APART
                if inside:
                    point = Point(case.model, variable.name, variable.route, flip.route, flip.value, flip.above)
                    points.append(point)
    return points


def flip_lines(wanted: Wanted, may_begin: Callable[[], bool], tell: Callable[[str], None]) -> list[str]:
    """Measures a flip point; returns a line on the point, and one on each side.

    Raises:
        NotRunning: a command or a job fails.
    """
    points = points_of(planned_cases(wanted, may_begin, tell))
    if not points:
        return ["No plan of these models has a flip point of link rates that a lab can emulate. Raise --cases."]
    first = list({point.model.number: point for point in reversed(points)}.values())
    tell(f"planning both sides of {len(first)} flip points")
    sides = _planned(wanted, first)
    point, files = max(zip(first, sides, strict=True), key=lambda one: min(map(_apart, one[1])))
    lines = [f"{point.model.title}, planned at {mbit(point.model.rate_bytes_per_s)}. The plan says: {point.title}"]
    for file in files:
        case = case_from_json(file.read_text(encoding="utf-8"))
        tell(f"measuring at {mbit(case.model.rate_bytes_per_s)}")
        with Lab(wanted.hosts, case.model.rate_bytes_per_s) as lab:
            measure(wanted, InLab(lab), [file])
        lines.append(side_line(case_from_json(file.with_suffix(".measured.json").read_text(encoding="utf-8"))))
    return lines


def side_line(case: Case) -> str:
    """Returns the line of one side: which of two plans was faster; the first is the one for this side."""
    own_s, other_s = case.measured_s
    verdict = "as planned" if own_s < other_s else "NOT as planned"
    steps = ", ".join(
        f"{choice.title} {1e3 * seconds:.2f} ms ({1e3 * choice.predicted_s:.2f} predicted)"
        for choice, seconds in zip(case.choices, case.measured_s, strict=True)
    )
    return f"at {mbit(case.model.rate_bytes_per_s)}, planned first: {steps}: {verdict}"


def _planned(wanted: Wanted, points: Sequence[Point]) -> list[list[Path]]:
    """Plans two cases per point, with slower and faster links, each with the plans of both sides, its own first."""
    words, files = [], []
    for point in points:
        file = wanted.calibration(point.model.rate_bytes_per_s)
        profile = cluster_profile_from_json(file.read_text(encoding="utf-8"), str(file))
        rates = (round(point.rate / APART), round(point.rate * APART))
        for rate in rates:
            made = derive_profile([profile], [NewHost(host.name, rate) for host in profile.hosts], shares_cores=True)
            side_file(wanted.folder, point.model.number, rate, "cluster").write_text(made.to_json(), encoding="utf-8")
        words.append(",".join(map(str, (point.model.number, *rates))))
        files.append([side_file(wanted.folder, point.model.number, rate, "case") for rate in rates])
    argv = [sys.executable, "-m", "ops.bench.regret.plans", "--sides", str(wanted.folder), *words]
    check(subprocess.run(argv, env=environment(), cwd=ROOT, capture_output=True, text=True, check=False), "planning")
    return files


def _apart(file: Path) -> float:
    """Returns the predicted step of the other plan over that of the side's own; 0 if they are the same plan."""
    own, other = case_from_json(file.read_text(encoding="utf-8")).choices
    return 0.0 if own.routes == other.routes else other.predicted_s / own.predicted_s
