"""Attributes waiting to ranks: at a collective, or where a server aggregates gradients, until the last rank arrived.

The last rank may itself only have waited for one that was late elsewhere: within a host, for example. `causes` follows
the chain to the rank that did not wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from parallax.runtime.trace.ops import Step
from parallax.transform.building.all_to_all import is_collective


class Rendezvous(NamedTuple):
    """One synchronization of ranks.

    Attributes:
        step: number of the step.
        name: of the op, the same on all ranks.
        time: the index of its run in this step.
        team: the workers that take part: the number of their stage or island, and of their host or -1 for all hosts.
    """

    step: int
    name: str
    time: int
    team: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Arrival:
    """The arrival of one rank at a rendezvous, on rank 0's clock.

    Attributes:
        start_us: when it arrived.
        end_us: until when it may have waited; infinite if the op itself does not wait.
    """

    start_us: float
    end_us: float


@dataclass(frozen=True, slots=True)
class Wait:
    """A rank waited for another, on rank 0's clock."""

    rendezvous: Rendezvous
    start_us: float
    end_us: float
    whom: int


def arrivals(
    steps: Iterable[Step], within_host: frozenset[str], host: int, group: int = 0
) -> dict[Rendezvous, Arrival]:
    """The arrivals of a rank at all its rendezvous.

    Args:
        steps: on rank 0's clock.
        within_host: names of the collectives between the workers of a host.
        host: the rank's.
        group: the number of the rank's stage or island.
    """
    arrival_by_rendezvous: dict[Rendezvous, Arrival] = {}
    for step in steps:
        times: dict[str, int] = {}
        for op in step.ops:
            if not op.has_rendezvous:
                continue
            time = times.get(op.name, 0)
            times[op.name] = time + 1
            until_us = op.end_us if is_collective(op.type) else float("inf")
            rendezvous = Rendezvous(step.number, op.name, time, (group, host if op.name in within_host else -1))
            arrival_by_rendezvous[rendezvous] = Arrival(op.start_us, until_us)
    return arrival_by_rendezvous


def last_arrivals(by_rank: Sequence[Mapping[Rendezvous, Arrival]]) -> dict[Rendezvous, tuple[float, int]]:
    """For each rendezvous the time of the last arrival, and its rank."""
    last_by_rendezvous: dict[Rendezvous, tuple[float, int]] = {}
    for rank, came in enumerate(by_rank):
        for rendezvous, arrival in came.items():
            if rendezvous not in last_by_rendezvous or arrival.start_us > last_by_rendezvous[rendezvous][0]:
                last_by_rendezvous[rendezvous] = (arrival.start_us, rank)
    return last_by_rendezvous


def waits(rank: int, local: Mapping[Rendezvous, Arrival], last: Mapping[Rendezvous, tuple[float, int]]) -> list[Wait]:
    """The waits of one rank at its rendezvous."""
    wait_list = []
    for rendezvous, arrival in local.items():
        came_us, whom = last[rendezvous]
        until_us = min(came_us, arrival.end_us)
        if whom != rank and until_us > arrival.start_us:
            wait_list.append(Wait(rendezvous, arrival.start_us, until_us, whom))
    return wait_list


class Cause(NamedTuple):
    """An interval in which others waited for a rank that did not wait itself; on rank 0's clock."""

    start_us: float
    end_us: float
    whom: int


def causes(
    waited: Mapping[int, Sequence[Wait]], busy: Mapping[int, Sequence[tuple[float, float]]]
) -> list[list[Cause]]:
    """The ranks that each rank ultimately waited for, in the order of `waited`.

    A rank that computes while it waits is considered late because of its computing.

    Args:
        waited: by rank, its waits.
        busy: by rank, the intervals of its computing: ascending and disjoint.
    """
    idle = {rank: _idle(waited[rank], busy[rank]) for rank in waited}
    return [
        [cause for wait in found for cause in _passed_on(Cause(wait.start_us, wait.end_us, wait.whom), idle, {rank})]
        for rank, found in waited.items()
    ]


def _idle(waited: Sequence[Wait], busy: Sequence[tuple[float, float]]) -> list[Cause]:
    """The parts of a rank's waits without computing, in sequence; of two concurrent waits the earlier."""
    idle_causes: list[Cause] = []
    taken_us = float("-inf")
    for wait in sorted(waited, key=lambda wait: (wait.start_us, wait.end_us, wait.whom)):
        at_us = max(wait.start_us, taken_us)
        for start_us, end_us in [*busy, (wait.end_us, wait.end_us)]:
            if start_us > at_us and at_us < wait.end_us:
                idle_causes.append(Cause(at_us, min(start_us, wait.end_us), wait.whom))
            at_us = max(at_us, end_us)
        taken_us = max(taken_us, wait.end_us)
    return idle_causes


def _passed_on(cause: Cause, idle: Mapping[int, Sequence[Cause]], seen: set[int]) -> list[Cause]:
    """Replaces the parts of a cause in which that rank itself waited by their causes; never by a `seen` rank."""
    passed_causes: list[Cause] = []
    at_us = cause.start_us
    for deeper in idle[cause.whom]:
        start_us, end_us = max(deeper.start_us, at_us), min(deeper.end_us, cause.end_us)
        if end_us <= start_us or deeper.whom in seen:
            continue
        if start_us > at_us:
            passed_causes.append(Cause(at_us, start_us, cause.whom))
        passed_causes += _passed_on(Cause(start_us, end_us, deeper.whom), idle, seen | {cause.whom})
        at_us = end_us
    if cause.end_us > at_us:
        passed_causes.append(Cause(at_us, cause.end_us, cause.whom))
    return passed_causes
