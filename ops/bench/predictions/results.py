"""Predicted and measured step times by case, and their errors."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

MEDIAN_WANTED, WORST_WANTED = 0.08, 0.20


@dataclass(frozen=True, slots=True)
class Case:
    """One model on one cluster.

    Attributes:
        model: name of the model.
        hosts: number of hosts, with a worker on each.
        rate_bytes_per_s: rate of each link, each way.
        predicted_s: predicted step time of the plan that the job then ran.
        phases: (name, seconds) of the predicted step.
        rounds_s: measured step times, by round.
    """

    model: str
    hosts: int
    rate_bytes_per_s: int
    predicted_s: float
    phases: tuple[tuple[str, float], ...]
    rounds_s: tuple[float, ...]

    @property
    def measured_s(self) -> float:
        """Median step time over the rounds."""
        return statistics.median(self.rounds_s)

    @property
    def error(self) -> float:
        """(predicted - measured) / measured."""
        return self.predicted_s / self.measured_s - 1

    def to_json(self) -> str:
        """Returns the case as JSON text."""
        return json.dumps(asdict(self)) + "\n"


def case_from_json(text: str) -> Case:
    """Parses the text of `Case.to_json`."""
    raw: dict[str, Any] = json.loads(text)
    phases = tuple((name, seconds) for name, seconds in raw["phases"])
    return Case(**{**raw, "phases": phases, "rounds_s": tuple(raw["rounds_s"])})


def table(cases: Sequence[Case]) -> list[str]:
    """Returns a line per case, and the median and the worst error with their targets."""
    form = "{:<11} {:>5} {:>12} {:>10} {:>10} {:>7}  {}"
    lines = [form.format("model", "hosts", "link mbit/s", "predicted", "measured", "error", "fastest-slowest round")]
    for case in cases:
        spread = f"{1e3 * min(case.rounds_s):.1f}-{1e3 * max(case.rounds_s):.1f} ms"
        seconds = (f"{1e3 * s:.1f} ms" for s in (case.predicted_s, case.measured_s))
        rate = f"{8e-6 * case.rate_bytes_per_s:g}"
        lines.append(form.format(case.model, case.hosts, rate, *seconds, f"{case.error:+.1%}", spread))
    if cases:
        errors = [abs(case.error) for case in cases]
        for name, found, wanted in (
            ("Median", statistics.median(errors), MEDIAN_WANTED),
            ("Worst", max(errors), WORST_WANTED),
        ):
            verdict = "met" if found <= wanted else "MISSED"
            lines.append(f"{name} error {found:.1%}, target at most {wanted:.0%}: {verdict}")
    return lines
