"""Who waited for whom: at a collective, or where gradients meet on a server, until the last one came."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from parallax.runtime.trace.ops import COLLECTIVES, Step


class Meeting(NamedTuple):
    """One time that ranks meet.

    Attributes:
        step: number of the step.
        name: of the op, the same on all ranks.
        time: which run of it in this step.
        host: the number of the host whose workers meet; -1 for all.
    """

    step: int
    name: str
    time: int
    host: int


@dataclass(frozen=True, slots=True)
class Arrival:
    """How one rank came to a meeting, on rank 0's clock.

    Attributes:
        start_us: when it came.
        end_us: until when it may have waited; infinite where the op itself does not wait.
    """

    start_us: float
    end_us: float


@dataclass(frozen=True, slots=True)
class Wait:
    """A rank waited for another, on rank 0's clock."""

    meeting: Meeting
    start_us: float
    end_us: float
    whom: int


def arrivals(steps: Iterable[Step], within_host: frozenset[str], host: int) -> dict[Meeting, Arrival]:
    """How a rank came to all its meetings.

    Args:
        steps: on rank 0's clock.
        within_host: names of the collectives that are among the workers of a host.
        host: the rank's.
    """
    found: dict[Meeting, Arrival] = {}
    for step in steps:
        times: dict[str, int] = {}
        for op in step.ops:
            if not op.is_meeting:
                continue
            time = times.get(op.name, 0)
            times[op.name] = time + 1
            meeting = Meeting(step.number, op.name, time, host if op.name in within_host else -1)
            found[meeting] = Arrival(op.start_us, op.end_us if op.type in COLLECTIVES else float("inf"))
    return found


def last_arrivals(by_rank: Sequence[Mapping[Meeting, Arrival]]) -> dict[Meeting, tuple[float, int]]:
    """For each meeting when the last rank came, and which one that was."""
    found: dict[Meeting, tuple[float, int]] = {}
    for rank, came in enumerate(by_rank):
        for meeting, arrival in came.items():
            if meeting not in found or arrival.start_us > found[meeting][0]:
                found[meeting] = (arrival.start_us, rank)
    return found


def waits(rank: int, own: Mapping[Meeting, Arrival], last: Mapping[Meeting, tuple[float, int]]) -> list[Wait]:
    """What one rank waited at its meetings."""
    found = []
    for meeting, arrival in own.items():
        came_us, whom = last[meeting]
        until_us = min(came_us, arrival.end_us)
        if whom != rank and until_us > arrival.start_us:
            found.append(Wait(meeting, arrival.start_us, until_us, whom))
    return found
