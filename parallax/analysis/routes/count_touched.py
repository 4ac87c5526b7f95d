"""Counts the rows of a variable that the workers of a step touch: as the user states, as measured, or a bound."""

from __future__ import annotations

from dataclasses import dataclass, replace

from parallax.cluster.plan_inputs import PlanInputs
from parallax.graph.spec import VariableSpec
from parallax.plans.plan import PlanConstraints


@dataclass(frozen=True, slots=True)
class TouchedRowCount:
    """The touched rows of one variable.

    Attributes:
        rows: of the full variable.
        one: distinct rows that a worker reads in a step.
        ids: the number of ids that a worker looks up in a step, with repetition.
        union_counts: (k, distinct rows that k workers read together), from k = 1, ascending; more entries than `one`
            alone only where they were measured.
        busiest: the share of the busiest owner, times the number of owners.
        is_measured: whether they come from a model profile.
    """

    rows: int
    one: float
    ids: float
    union_counts: tuple[tuple[int, float], ...] = ()
    busiest: float = 1.0
    is_measured: bool = False

    def of(self, workers: int) -> float:
        """The number of distinct rows that `workers` workers read together.

        Linear between measurements; beyond them the last slope, which is an overestimate, as rows that were touched
        already recur more and more often. Without measurements no two workers share a row.
        """
        if workers < 1:
            return 0.0
        most = min(float(self.rows), workers * self.one)
        points = self.union_counts or ((1, self.one),)
        if len(points) < 2:
            return most
        (k0, r0), (k1, r1) = next(
            ((a, b) for a, b in zip(points, points[1:], strict=False) if workers <= b[0]), (points[-2], points[-1])
        )
        return min(most, r0 + (r1 - r0) * (workers - k0) / (k1 - k0))

    def scaled_to(self, one: float) -> TouchedRowCount:
        """With another number of rows per worker, and those of several workers scaled in proportion."""
        factor = one / self.one
        scaled = tuple((k, min(float(self.rows), rows * factor)) for k, rows in self.union_counts)
        return TouchedRowCount(self.rows, one, max(one, self.ids * factor), scaled, self.busiest, self.is_measured)


def touched_of(variable: VariableSpec, constraints: PlanConstraints, measured: PlanInputs) -> TouchedRowCount | None:
    """The touched rows of a variable looked up by row; None when unknown.

    The user's statement takes precedence over measurements, and those over the bound from static shapes.
    """
    if not variable.has_slices:
        return None
    table = measured.table(variable.name)
    measured_count = None
    if table is not None and table.touched_rows > 0:
        measured_count = TouchedRowCount(
            variable.rows, table.touched_rows, table.ids, table.joined_rows, max(1.0, table.busiest_share), True
        )
    requested = constraints.touched_rows.get(variable.name)
    if requested is not None:
        return (
            TouchedRowCount(variable.rows, requested, requested)
            if measured_count is None
            else replace(measured_count.scaled_to(requested), is_measured=False)
        )
    if measured_count is None and variable.ids_per_step is not None and variable.touched_rows_bound:
        return TouchedRowCount(variable.rows, variable.touched_rows_bound, variable.ids_per_step)
    return measured_count
