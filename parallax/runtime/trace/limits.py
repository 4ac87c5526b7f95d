"""Compares a rank's steps with the lower bound of the traced ops, and measures how much of the exchanges is overlapped.

An exchange is a collective without the waiting for other ranks, and all other ops are the device's work. At a moment
when several exchanges, or several ops of the device, are in progress, each of them gets an equal share of it: so a link
is busy for as long as it was, and overlapping ops on one resource are not counted twice. A dependency of the graph
counts only if the trace agrees: an op that began before another had ended did not depend on it in this step.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from parallax.analysis.timing.intervals import Interval, shares
from parallax.analysis.timing.list_schedule import hidden_frac, schedule_one_step, schedule_overlapping_steps
from parallax.analysis.timing.schedule import bound_period_seconds, bound_step_seconds
from parallax.graph.view import GraphView
from parallax.runtime.trace.dependencies import (
    DEVICE,
    HOST,
    LINK,
    Dependencies,
    NodeOwners,
    ResourceTime,
    dependencies_of,
)
from parallax.runtime.trace.ops import WAITING, Op, Step
from parallax.runtime.trace.waits import Wait
from parallax.transform.building.all_to_all import is_collective
from parallax.transform.swap import as_planned

_MOST_STEPS = 5
"""The number of last steps that are analysed: at 5,000 nodes each takes half a second, for which the job waits."""

_SLACK_US = 5
"""Tolerated overlap of two dependent ops: TensorFlow reports whole microseconds, and starts its clock late."""


@dataclass(frozen=True, slots=True)
class StepLimits:
    """One rank's steps, and lower bounds from their ops: averages over the last of the traced steps.

    Attributes:
        measured_us: of a step, including waiting.
        hidden_frac: the part of the time of exchanges that overlaps with other ops.
        possible_frac: that part in the step that list scheduling gives, or as measured if that is more.
        shortest_us: no schedule of one step alone is below it.
        overlapping_frac: as `possible_frac`, where steps overlap; None where they cannot.
        overlapping_us: no schedule of steps that overlap has a shorter period; None where they cannot.
    """

    measured_us: float
    hidden_frac: float
    possible_frac: float
    shortest_us: float
    overlapping_frac: float | None = None
    overlapping_us: float | None = None


def step_limits(
    view: GraphView, steps: Sequence[Step], waited: Sequence[Wait], within_host: frozenset[str]
) -> StepLimits | None:
    """The limits of a rank's steps; None if nothing is exchanged, or servers take part.

    Args:
        view: the graph that this rank runs.
        steps: on rank 0's clock.
        waited: the rank's waits at collectives and servers.
        within_host: names of the collectives between the workers of a host.
    """
    if any(op.server is not None for step in steps for op in step.ops):
        return None
    steps = [step for step in steps if any(is_collective(op.type) for op in step.ops)][-_MOST_STEPS:]
    owners = NodeOwners(view)
    ran = {owner for step in steps for op in step.ops if (owner := owners.of(op.name)) is not None}
    dependencies = dependencies_of(view, ran)
    limits_by_step = [
        _of_step(_TimedOps(owners, dependencies, step, waited, within_host), dependencies) for step in steps
    ]
    return _mean(limits_by_step) if limits_by_step else None


def _of_step(timed: _TimedOps, dependencies: Dependencies) -> StepLimits:
    step = replace(dependencies, needs=timed.kept_needs(dependencies)).step(timed.count_times())
    hidden = hidden_frac(timed.exchanges(), timed.intervals(DEVICE)) or 0.0
    alone = schedule_one_step(step).hidden_frac(DEVICE) or 0.0
    limits = StepLimits(timed.step_us, hidden, max(hidden, alone), bound_step_seconds(step))
    if not dependencies.can_overlap:
        return limits
    overlapping_us = bound_period_seconds(step)
    overlapping = schedule_overlapping_steps(step, overlapping_us).hidden_frac(DEVICE) or 0.0
    return replace(
        limits,
        shortest_us=max(limits.shortest_us, overlapping_us),  # sequential steps keep all borders
        overlapping_frac=max(limits.possible_frac, overlapping),
        overlapping_us=overlapping_us,
    )


def _mean(limits: Sequence[StepLimits]) -> StepLimits:
    def mean(of: Iterable[float | None]) -> float | None:
        known = [one for one in of if one is not None]
        return statistics.fmean(known) if known else None

    return StepLimits(
        statistics.fmean(one.measured_us for one in limits),
        statistics.fmean(one.hidden_frac for one in limits),
        statistics.fmean(one.possible_frac for one in limits),
        statistics.fmean(one.shortest_us for one in limits),
        mean(one.overlapping_frac for one in limits),
        mean(one.overlapping_us for one in limits),
    )


class _TimedOps:
    """The ops of a step by activity, with their times."""

    def __init__(
        self,
        owners: NodeOwners,
        dependencies: Dependencies,
        step: Step,
        waited: Sequence[Wait],
        within_host: frozenset[str],
    ) -> None:
        until_us = {(w.rendezvous.name, w.start_us): w.end_us for w in waited if w.rendezvous.step == step.number}
        self._of_resource: dict[str, list[tuple[str, float, float]]] = {DEVICE: [], LINK: [], HOST: []}
        self._begin_us: dict[str, float] = {}
        self._end_us: dict[str, float] = {}
        ops = [op for op in step.ops if op.kind != WAITING or is_collective(op.type)]
        self.step_us = max(op.end_us for op in step.ops) - min(op.start_us for op in step.ops)
        for op in ops:
            name = self._activity(owners, dependencies, op)
            exchanges = is_collective(op.type)
            resource = (HOST if op.name in within_host else LINK) if exchanges else DEVICE
            start_us = until_us.get((op.name, op.start_us), op.start_us) if exchanges else op.start_us
            self._of_resource[resource].append((name, start_us, op.end_us))
            self._begin_us[name] = min(self._begin_us.get(name, op.start_us), op.start_us)
            self._end_us[name] = max(self._end_us.get(name, op.end_us), op.end_us)

    @staticmethod
    def _activity(owners: NodeOwners, dependencies: Dependencies, op: Op) -> str:
        """The activity of an op; an exchange within a loop or a function is its own."""
        owner = owners.of(op.name)
        if owner is None:
            return f"{op.name}: added"
        activity = dependencies.within.get(owner, owner)
        is_whole = activity == owner and as_planned(owner) == op.name
        return f"{op.name}: within" if is_collective(op.type) and not is_whole else activity

    def count_times(self) -> dict[str, ResourceTime]:
        """The time of each activity, in microseconds; activities of zero length are left out."""
        return {
            name: ResourceTime(time_us, resource)
            for resource, intervals in self._of_resource.items()
            for name, time_us in shares(intervals).items()
        }

    def intervals(self, resource: str) -> list[Interval]:
        """The intervals in which a resource was busy."""
        return [(start_us, end_us) for _, start_us, end_us in self._of_resource[resource]]

    def exchanges(self) -> list[Interval]:
        """The intervals in which an exchange was in progress."""
        return [*self.intervals(LINK), *self.intervals(HOST)]

    def kept_needs(self, dependencies: Dependencies) -> Mapping[str, tuple[str, ...]]:
        """The dependencies of each activity, except those that had not ended when it began."""
        over_us: dict[str, float] = {}
        remaining = {}
        for name, needs in dependencies.needs.items():
            begin_us = self._begin_us.get(name, float("inf"))
            remaining[name] = tuple(one for one in needs if over_us.get(one, 0.0) <= begin_us + _SLACK_US)
            until_us = max((over_us.get(one, 0.0) for one in remaining[name]), default=0.0)
            over_us[name] = self._end_us.get(name, until_us)
        return remaining
