"""Generated models at several link rates, the plans that are compared on each, and their measurements."""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FAR = 2.0
"""Plans whose predicted step is this many times the shortest, or more, are not measured."""

NEAR, SHARE_WANTED = 1.05, 0.90


@dataclass(frozen=True, slots=True)
class Model:
    """A generated model at a link rate.

    Attributes:
        number: number of the case, from 0, which determines everything else.
        sizes: sizes of `Generated`.
        rate_bytes_per_s: rate of each link, each way.
    """

    number: int
    sizes: dict[str, Any]
    rate_bytes_per_s: int

    @property
    def title(self) -> str:
        """A summary of its sizes."""
        s = self.sizes
        return f"{s['tables_number']}x{s['rows']}x{s['width']} ids {s['ids']} dense {s['outputs']} skew {s['skew']}"


@dataclass(frozen=True, slots=True)
class Choice:
    """A plan for a model.

    Attributes:
        routes: (variable, route), sorted by name.
        predicted_s: predicted step time.
        plan: the plan as JSON.
    """

    routes: tuple[tuple[str, str], ...]
    predicted_s: float
    plan: str

    @property
    def title(self) -> str:
        """The routes, in the order of the variables."""
        return " ".join(route for _, route in self.routes)


@dataclass(frozen=True, slots=True)
class Case:
    """A model with its plans; the first is the planner's choice.

    Attributes:
        model: the model.
        choices: the plans to measure.
        plans: number of all plans, with partitions on servers by the placement rule.
        far: number of plans left out because they are predicted to take FAR times the shortest or more.
        beyond: number of plans left out because of --plans: those with the longest predicted steps.
        rounds_s: step times, `[choice][round]`; empty before the measurement.
    """

    model: Model
    choices: tuple[Choice, ...]
    plans: int
    far: int
    beyond: int
    rounds_s: tuple[tuple[float, ...], ...] = ()

    @property
    def measured_s(self) -> tuple[float, ...]:
        """Median step time of each choice."""
        return tuple(map(statistics.median, self.rounds_s))

    @property
    def best(self) -> int:
        """The index of the fastest choice."""
        return min(range(len(self.choices)), key=lambda n: self.measured_s[n])

    @property
    def ratio(self) -> float:
        """The median step time of the planner's choice over that of the best choice."""
        return self.measured_s[0] / self.measured_s[self.best]

    def to_json(self) -> str:
        """Returns the case as JSON text."""
        return json.dumps(asdict(self)) + "\n"


def case_from_json(text: str) -> Case:
    """Parses the text of `Case.to_json`."""
    raw: dict[str, Any] = json.loads(text)
    choices = tuple(Choice(tuple(map(tuple, c["routes"])), c["predicted_s"], c["plan"]) for c in raw["choices"])
    rounds_s = tuple(map(tuple, raw["rounds_s"]))
    return Case(**{**raw, "model": Model(**raw["model"]), "choices": choices, "rounds_s": rounds_s})


def side_file(folder: Path, number: int, rate: int, what: str) -> Path:
    """Returns a file of one side of a flip point: its `cluster` profile, or its `case`."""
    return folder / f"flip-{number}-{rate}-{what}.json"


def models(number: int, rates: Sequence[int]) -> tuple[Model, ...]:
    """Returns this many models, always the same ones, with the rates in turn."""
    return tuple(_model(n, rates[n % len(rates)]) for n in range(number))


def _model(number: int, rate: int) -> Model:
    draw = random.Random(number)

    def power(low: float, high: float) -> int:
        return round(10 ** draw.uniform(low, high))

    sizes = {
        "tables_number": draw.randint(1, 3),
        "rows": power(2.5, 4.5),
        "width": draw.choice([8, 16, 32, 64, 128, 256]),
        "ids": power(1.5, 3.2),
        "outputs": power(1, 3),
        "skew": draw.choice([1.05, 1.2, 1.5]),
    }
    return Model(number, sizes, rate)


def table(cases: Sequence[Case]) -> list[str]:
    """Returns lines for each case, and the share of cases in which the chosen plan is near the best one."""
    lines = []
    for case in cases:
        best = case.choices[case.best]
        chosen_s, best_s = case.measured_s[0], case.measured_s[case.best]
        lines.append(
            f"{case.model.number:>3}  {8e-6 * case.model.rate_bytes_per_s:g} mbit/s  {case.model.title}\n"
            f"     chosen {case.choices[0].title}: {1e3 * chosen_s:.2f} ms ({1e3 * case.choices[0].predicted_s:.2f} "
            f"predicted); best {best.title}: {1e3 * best_s:.2f} ms ({1e3 * best.predicted_s:.2f} predicted); ratio "
            f"{case.ratio:.3f}; {len(case.choices)} of {case.plans} plans measured, {case.far} left out as too slow, "
            f"{case.beyond} by --plans"
        )
    if cases:
        near = sum(case.ratio <= NEAR for case in cases)
        verdict = "met" if near / len(cases) >= SHARE_WANTED else "MISSED"
        lines.append(
            f"Within {NEAR - 1:.0%} of the best: {near} of {len(cases)} cases, {near / len(cases):.0%}; target at "
            f"least {SHARE_WANTED:.0%}: {verdict}. Worst ratio {max(case.ratio for case in cases):.3f}."
        )
        lines.append(
            f"Left out as predicted {FAR:g} times as long as the shortest: {sum(c.far for c in cases)} of "
            f"{sum(c.plans for c in cases)} plans; left out by --plans: {sum(c.beyond for c in cases)}."
        )
    return lines
