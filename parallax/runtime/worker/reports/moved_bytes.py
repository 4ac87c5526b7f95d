"""Counts the bytes that exchanges moved, and compares them with the plan's formula at the measured touched rows."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from parallax.base.types import Value
from parallax.plans.plan import ALLGATHER, ALLTOALL, PS, Plan
from parallax.report.diff import places_text
from parallax.report.text import bytes_text, ms_text
from parallax.runtime.worker.ranks import current_process_group
from parallax.runtime.worker.reports.run_log import StepTimes
from parallax.transform.building.editor import Counter
from parallax.transform.building.wire import GRADIENTS, ROWS, Rounding


@dataclass(frozen=True, slots=True)
class RoundingCost:
    """The rounding errors of half precision on the wire, over all workers and runs.

    Relative errors are |rounded - row| / |row|, of a sample of the rows (parallax/transform/building/wire.py).

    Attributes:
        kind: `rows` or `gradients`.
        sampled: number of sampled rows that were not zero.
        mean: of their relative errors.
        largest: of these; 1 when a row became zero, infinite when it grew too large for the type.
        magnitude: the largest absolute value of all elements before they were rounded.
    """

    kind: str
    sampled: int
    mean: float
    largest: float
    magnitude: float

    def __str__(self) -> str:
        return (
            f"{self.kind} mean {self.mean:.2e}, largest {self.largest:.2e} of {self.sampled} sampled, "
            f"values up to {self.magnitude:.3g}"
        )


@dataclass(frozen=True, slots=True)
class ExchangeReport:
    """The training exchanges of a job so far, summed over the workers.

    Attributes:
        steps: training steps so far, each an update with all its batches.
        touched_rows: distinct rows that a worker touched per batch, by variable (mean).
        predicted_bytes: (1-s) u (i + 2de) of the alltoall exchanges, u being a worker's measured touched rows and s the
            share of all rows that it owns, 1/W if all own as many. Where several hosts have several workers, u is the
            number of distinct rows of a host's workers together, and s the share that its workers own. Where gradients
            are accumulated, the same for each batch's pull and for the update's push, ids included.
        counted_bytes: their bytes of ids, rows and gradient rows that left a worker for another, or a host for another
            where there are several.
        server_bytes: bytes of ids, rows and gradient rows that workers and servers sent to each other; where servers
            have fronts (parallax/plans/plan.py), those that left a worker for another's host.
        gathered_bytes: bytes that reached other workers by allgather.
        plan: the current plan; all figures are of the steps under it.
        changes: the earlier plans, each with the number of steps after which it was replaced.
        rounded: the errors of rounding on the wire; empty without.
        step_s: seconds of a step in `session.run`, medians over steps and workers; None when there were too few.
    """

    steps: int
    touched_rows: tuple[tuple[str, float], ...]
    predicted_bytes: int
    counted_bytes: int
    gathered_bytes: int
    server_bytes: int = 0
    plan: Plan | None = None
    changes: tuple[tuple[int, Plan], ...] = ()
    rounded: tuple[RoundingCost, ...] = ()
    step_s: float | None = None

    def __str__(self) -> str:
        lines = [f"plan changed after step {steps}:\n{text}" for steps, text in self._list_changes()]
        batches = 1 if self.plan is None else self.plan.accumulate_steps
        lines += [f"touched rows per worker and {'step' if batches == 1 else 'batch'} over {self.steps} steps:"]
        lines += [f"  {name}: {rows:.1f}" for name, rows in self.touched_rows]
        lines.append(
            f"alltoall bytes sent by all workers: predicted {bytes_text(self.predicted_bytes)}, "
            f"counted {bytes_text(self.counted_bytes)}" + self._difference()
        )
        if self.server_bytes:
            lines.append(f"bytes between workers and servers: counted {bytes_text(self.server_bytes)}")
        if self.gathered_bytes:
            lines.append(f"allgather bytes sent by all workers: counted {bytes_text(self.gathered_bytes)}")
        if self.rounded:
            lines.append(self.rounding_text())
        if self.plan is not None and self.plan.profiles:
            lines.append(self.compare_with_plan())
        return "\n".join(lines)

    def rounding_text(self) -> str:
        """The rounding errors of half precision on the wire, in a line; empty without."""
        if self.plan is None or not self.rounded:
            return ""
        return f"relative error of {self.plan.wire_dtype} on the wire: {'; '.join(map(str, self.rounded))}"

    def compare_with_plan(self, step_s: float | None = None) -> str:
        """Compares the plan's predictions with measurements: rows and bytes by variable, bytes by route, and the step.

        Bytes of a variable are the plan's, next to the same formula at the measured rows. Bytes of routes were counted;
        where several hosts have several workers, fewer leave a host than its workers would send.

        Args:
            step_s: seconds of a step, as the script measured them; None for the session's own measurement.
        """
        step_s = self.step_s if step_s is None else step_s
        if self.plan is None or not self.steps:
            return "nothing to compare with the plan: no step was counted"
        measured = dict(self.touched_rows)
        lines = [f"compared with the plan, per worker and step over {self.steps} steps:"]
        for variable in self.plan.variables:
            rows, sent = measured.get(variable.name), variable.cost.sent_bytes
            if rows is None or not variable.touched_rows or sent is None:
                continue
            there = sent * rows / variable.touched_rows
            lines.append(
                f"  {variable.name}: touched rows {variable.touched_rows} planned, {rows:.1f} measured"
                f"{_more(rows, variable.touched_rows)}; {variable.route} {bytes_text(sent)} planned, "
                f"{bytes_text(round(there))} at these rows"
            )
        counted = {ALLTOALL: self.counted_bytes, ALLGATHER: self.gathered_bytes, PS: self.server_bytes}
        for route, total in counted.items():
            known = [v.cost.sent_bytes for v in self.plan.variables if v.route == route and v.touched_rows]
            planned = sum(sent for sent in known if sent is not None)
            if planned and total:
                one = total / self.steps / self.plan.num_workers
                comparison = f"{bytes_text(round(one))} counted{_more(one, planned)}"
                lines.append(f"  {route} bytes: {bytes_text(planned)} planned, {comparison}")
        planned_s = self.plan.prediction.step_s
        if planned_s is not None:
            whole = self.plan.prediction.has_compute
            comparison = ""
            if step_s is not None:
                deviation = _more(step_s, planned_s) if whole else " of the step, with its compute"
                comparison = f", {ms_text(step_s)} measured{deviation}"
            lines.append(f"  {'step' if whole else 'exchanges of a step'}: {ms_text(planned_s)} planned{comparison}")
        return "\n".join(lines)

    def _list_changes(self) -> list[tuple[int, str]]:
        """The changes of plan: the number of steps before each, and its difference."""
        plans = [plan for _, plan in self.changes] + ([self.plan] if self.plan is not None else [])
        between = zip(self.changes, plans[1:], strict=False)
        return [(steps, places_text(before, after).rstrip("\n")) for (steps, before), after in between]

    def _difference(self) -> str:
        if not self.predicted_bytes:
            return ""
        return f" ({100 * (self.counted_bytes / self.predicted_bytes - 1):+.2f} %)"


def _more(counted: float, expected: float) -> str:
    return f" ({100 * (counted / expected - 1):+.3g} %)" if expected else ""


def exchange_report(
    counters: Sequence[Counter],
    counted: Sequence[Value],
    size: int,
    plan: Plan | None = None,
    before: tuple[tuple[int, Plan], ...] = (),
) -> ExchangeReport:
    """Sums the counters over all workers; every worker must call it.

    Args:
        counters: a description of each counter.
        counted: `[1 + tables + 2]` for each: runs, distinct rows by table, rows requested from owners, rows that left.
        size: number of workers.
        plan: the current plan.
        before: the earlier plans, each with the number of steps after which it was replaced.
    """
    workers = current_process_group().workers
    totals = [np.asarray(workers.allreduce(np.asarray(numbers))) for numbers in counted]
    expected = [c.remote_fraction * float(numbers[-2]) for c, numbers in zip(counters, counted, strict=True)]
    left = workers.allreduce(np.asarray(expected))  # expected to leave: excluding each worker's share of its own rows
    predicted, moved, gathered, served, steps = 0.0, 0, 0, 0, 0
    of_batches = "pull" if plan is not None and plan.accumulate_steps > 1 else "push"
    touched: dict[str, float] = {}
    for counter, total, leaves in zip(counters, totals, left, strict=True):
        if not counter.trains or not total[0]:
            continue
        if counter.kind != "pull":  # evaluation may pull without training
            steps = max(steps, int(total[0]) // size)
        if counter.kind == "allgather":
            gathered += int(total[-1]) * (counter.row_bytes + counter.id_bytes)
            continue
        # A pull sends ids out and rows back; over all workers, as many rows are sent as requested.
        if counter.kind == of_batches:
            for name, rows in zip(counter.variables, total[1:-2], strict=True):
                touched[name] = touched.get(name, 0.0) + float(rows) / float(total[0])
        row_bytes = counter.row_bytes + counter.id_bytes
        if counter.route == PS:
            served += int(total[-1]) * row_bytes
            continue
        predicted += float(leaves) * row_bytes
        moved += int(total[-1]) * row_bytes
    return ExchangeReport(
        steps, tuple(sorted(touched.items())), round(predicted), moved, gathered, served, plan, before
    )


def measured_step(local: StepTimes | None) -> float | None:
    """The seconds of a step, the median over the workers, every one of which must call it; None if unknown."""
    step_times = [times.step_s for times in current_process_group().workers.allgather(local) if times is not None]
    return statistics.median(step_times) if step_times else None


def rounding_report(roundings: Sequence[Rounding], measured: Sequence[Value]) -> tuple[RoundingCost, ...]:
    """The rounding errors of each kind, over all workers, every one of which must call it.

    Args:
        roundings: a description of each measurement.
        measured: `[5]` for each, as in `Rounding`.
    """
    mine = [(rounding.kind, np.asarray(numbers)) for rounding, numbers in zip(roundings, measured, strict=True)]
    samples = [one for of_worker in current_process_group().workers.allgather(mine) for one in of_worker]
    reports = []
    for kind in (ROWS, GRADIENTS):
        entries = np.array([numbers for of, numbers in samples if of == kind])
        if not entries.size or not entries[:, 1].any():
            continue
        _, sampled, errors, _, _ = entries.sum(0)
        largest, magnitude = entries[:, 3:].max(0)
        reports.append(RoundingCost(kind, int(sampled), float(errors / sampled), float(largest), float(magnitude)))
    return tuple(reports)
