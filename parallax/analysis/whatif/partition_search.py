"""Chooses the number of partitions of tables on servers from measured steps of a running job.

After Parallax 2019 (Kim et al., EuroSys 2019, section 3.2): the count is doubled while steps get shorter, then halved
from the first; the model of a step with P partitions is

    t(P) = a / P + b * P + c

for the work in a partition is divided by P, and each partition costs its own requests. The three are fitted to the
samples by least squares; the best P lies between the smallest and the largest that were tried. One count is tried for
all tables together, at most the rows of each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from parallax.analysis.routes.candidates import place_on_servers
from parallax.analysis.routes.choose_route import is_by_row
from parallax.analysis.routes.placement import place
from parallax.graph.spec import GraphSpec
from parallax.plans.plan import PS, Plan
from parallax.plans.prediction import Prediction

SHORTER = 0.02
"""The fraction by which a step must be shorter to count as shorter: less is noise of a few steps."""
MOST_SAMPLES = 8
"""The maximum number of counts to try: doubling from one partition reaches 64 in seven."""
_FITTED = 3  # samples needed for three unknowns


@dataclass(frozen=True, slots=True)
class PartitionSample:
    """A measured number of partitions.

    Attributes:
        count: partitions of each table.
        step_s: seconds of a step.
    """

    count: int
    step_s: float


@dataclass(frozen=True, slots=True)
class Fit:
    """`t(P) = a / P + b * P + c` in seconds."""

    a: float
    b: float
    c: float

    def seconds(self, count: int) -> float:
        """Seconds of a step with this number of partitions."""
        return self.a / count + self.b * count + self.c


def searched_tables(spec: GraphSpec, plan: Plan, wished: Mapping[str, int]) -> tuple[str, ...]:
    """The tables whose count is free: on servers, looked up by row, in one part, and not set by the user."""
    return tuple(
        v.name
        for v in spec.variables
        if plan.variable(v.name).route == PS and is_by_row(v) and len(v.parts) == 1 and v.name not in wished
    )


def next_count(samples: Sequence[PartitionSample], most: int) -> int | None:
    """The count to try next; None when enough were tried.

    Args:
        samples: in the order of measurement; at least one.
        most: the maximum number of partitions.
    """
    times = {sample.count: sample.step_s for sample in samples}
    if len(times) >= MOST_SAMPLES:
        return None
    first, largest, smallest = samples[0].count, max(times), min(times)
    rises = largest == first or times[largest] < (1 - SHORTER) * times[_below(times, largest)]
    if rises and largest == max(first, samples[-1].count) and 2 * largest <= most:
        return 2 * largest
    if smallest == first or times[smallest] < (1 - SHORTER) * times[_above(times, smallest)]:
        if smallest // 2 >= 1:
            return smallest // 2
    curve = fit(samples)
    if curve is None:
        return None
    best = min(range(smallest, largest + 1), key=lambda count: (curve.seconds(count), count))
    return None if best in times or curve.seconds(best) >= min(times.values()) else best


def fit(samples: Sequence[PartitionSample]) -> Fit | None:
    """The curve through the samples, with no term below 0 but the constant; None with fewer than three counts."""
    if len({sample.count for sample in samples}) < _FITTED:
        return None
    from scipy.optimize import lsq_linear

    counts = np.array([sample.count for sample in samples], float)
    terms = np.stack([1 / counts, counts, np.ones_like(counts)], axis=1)
    solution = lsq_linear(terms, [s.step_s for s in samples], bounds=([0, 0, -np.inf], np.inf))
    return Fit(*(float(x) for x in solution.x))


def best_count(samples: Sequence[PartitionSample]) -> int:
    """The measured count with the shortest step; among equal ones the smallest."""
    return min(samples, key=lambda sample: (sample.step_s, sample.count)).count


def with_partitions(plan: Plan, spec: GraphSpec, tables: Sequence[str], count: int) -> Plan:
    """A plan in which some tables on servers have that many partitions, or one for each row if there are fewer rows.

    The partitions are placed by the bytes of these tables alone; all other variables stay where they are.
    """
    variables = [spec.variable(name) for name in tables]
    partitions = {v.name: min(count, v.rows) for v in variables}
    loads = {v.name: float(plan.variable(v.name).cost.sent_bytes or 2 * v.value_bytes) for v in variables}
    placed = place(variables, loads, len(plan.servers), partitions)
    changed = {
        v.name: replace(
            place_on_servers(v, plan.variable(v.name), placed[v.name], len(plan.servers)),
            reason="partitions as measured in the running job",
        )
        for v in variables
    }
    return replace(
        plan,
        variables=tuple(changed.get(v.name, v) for v in plan.variables),
        prediction=Prediction(unknown="times unknown: partitions were chosen by measured steps"),
    )


def _below(counts: Mapping[int, float], count: int) -> int:
    return max(other for other in counts if other < count)


def _above(counts: Mapping[int, float], count: int) -> int:
    return min(other for other in counts if other > count)
