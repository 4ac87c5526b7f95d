"""Lays out one rank's activities as rows of intervals: each kind of work, waiting, and the servers' work for the rank.

Ops of one kind that overlap count once: a row shows when work of its kind was in progress. The part of a collective
before the last rank arrived is waiting, and the rest is its own kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from parallax.analysis.timing.intervals import Interval, length, union
from parallax.runtime.trace.clocks import SAME_CLOCK, Offset, offset_at
from parallax.runtime.trace.limits import StepLimits
from parallax.runtime.trace.ops import KINDS, WAITING, Op, Step
from parallax.runtime.trace.stage_passes import GAP_US, StagePasses
from parallax.runtime.trace.waits import Wait
from parallax.transform.building.all_to_all import is_collective


class HasTimes(Protocol):
    """An interval with a name."""

    @property
    def name(self) -> str:
        """The label."""

    @property
    def start_us(self) -> float:
        """Its start."""

    @property
    def end_us(self) -> float:
        """Its end."""


_WithTimes = TypeVar("_WithTimes", bound=HasTimes)


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of a row.

    Attributes:
        row: one of KINDS, or `server N`.
        step: its number.
        name: its label.
        start_us: on rank 0's clock.
        end_us: on rank 0's clock.
    """

    row: str
    step: int
    name: str
    start_us: float
    end_us: float


@dataclass(frozen=True, slots=True)
class TracedStep:
    """The times of one step.

    Attributes:
        number: of the step.
        start_us: of its first op.
        end_us: of its last.
        us_by_kind: the time in which work of each kind was in progress.
        server_us: how long servers worked for this rank.
    """

    number: int
    start_us: float
    end_us: float
    us_by_kind: dict[str, float]
    server_us: float


@dataclass(frozen=True, slots=True)
class RankTrace:
    """One rank's activities, on rank 0's clock.

    Attributes:
        rank: of the worker.
        host: its host's name.
        offset: of its clock.
        steps: the traced ones.
        spans: its rows.
        collectives: whole ops, including their waiting.
        waits: its waits for other ranks.
        servers: the offsets of servers' clocks; None if unknown, with uncorrected times.
        limits: of its steps, if known.
        passes: of micro-batches; None without stages.
        group: the number of the rank's stage or island; 0 where all workers train together.
    """

    rank: int
    host: str
    offset: Offset
    steps: tuple[TracedStep, ...]
    spans: tuple[Span, ...]
    collectives: tuple[Op, ...]
    waits: tuple[Wait, ...]
    servers: tuple[Offset | None, ...] = ()
    limits: StepLimits | None = None
    passes: StagePasses | None = None
    group: int = 0


def correct_times(step: Step, offsets: Sequence[Offset], servers: dict[int, Offset]) -> Step:
    """A step with all times on rank 0's clock; the times of a server that is not in `servers` are unchanged."""

    def shift(op: Op) -> Op:
        if op.server is None:
            by_us = offset_at(offsets, op.start_us)
        else:
            by_us = servers.get(op.server, SAME_CLOCK).offset_us
        return replace(op, start_us=round(op.start_us + by_us), end_us=round(op.end_us + by_us))

    return replace(step, ops=tuple(sorted(map(shift, step.ops), key=lambda op: (op.start_us, op.end_us, op.name))))


def rank_trace(
    rank: int,
    host: str,
    offset: Offset,
    steps: Sequence[Step],
    waited: Sequence[Wait],
    servers: tuple[Offset | None, ...] = (),
) -> RankTrace:
    """The rows of one rank.

    Args:
        rank: of the worker.
        host: its host's name.
        offset: of its clock.
        steps: on rank 0's clock.
        waited: its waits at collectives and servers.
        servers: the offsets of servers' clocks, None if unknown.
    """
    spans: list[Span] = []
    times = []
    for step in steps:
        mine = [wait for wait in waited if wait.rendezvous.step == step.number]
        by_row = _intervals(step, mine)
        times.append(_times(step, by_row))
        for row, intervals in by_row.items():
            name = _waiting_for(mine) if row == WAITING else lambda _, row=row: row
            spans += (Span(row, step.number, name(one), *one) for one in union(intervals, GAP_US * (row != WAITING)))
    collectives = tuple(op for step in steps for op in step.ops if is_collective(op.type))
    return RankTrace(rank, host, offset, tuple(times), tuple(spans), collectives, tuple(waited), servers)


def lanes(ops: Iterable[_WithTimes]) -> list[list[_WithTimes]]:
    """Distributes ops over as few rows as possible, so that ops of a row do not overlap."""
    op_lanes: list[list[_WithTimes]] = []
    for op in sorted(ops, key=lambda op: (op.start_us, op.end_us, op.name)):
        free = next((lane for lane in op_lanes if lane[-1].end_us <= op.start_us), None)
        if free is None:
            op_lanes.append([op])
        else:
            free.append(op)
    return op_lanes


def _intervals(step: Step, waited: Sequence[Wait]) -> dict[str, list[Interval]]:
    by_row: dict[str, list[Interval]] = {kind: [] for kind in KINDS}
    by_row[WAITING] += ((wait.start_us, wait.end_us) for wait in waited)
    # Identified by name and start: a rank takes part in one rendezvous at a time under one name.
    until_us = {(wait.rendezvous.name, wait.start_us): wait.end_us for wait in waited}
    for op in step.ops:
        start_us = until_us.get((op.name, op.start_us), op.start_us) if is_collective(op.type) else op.start_us
        row = op.kind if op.server is None or op.kind == WAITING else f"server {op.server}"
        by_row.setdefault(row, []).append((start_us, op.end_us))
    return by_row


def _times(step: Step, by_row: dict[str, list[Interval]]) -> TracedStep:
    start_us = min((op.start_us for op in step.ops), default=0)
    end_us = max((op.end_us for op in step.ops), default=0)
    of_servers = [one for row, intervals in by_row.items() if row not in KINDS for one in intervals]
    us_by_kind = {kind: length(by_row[kind]) for kind in KINDS}
    return TracedStep(step.number, start_us, end_us, us_by_kind, length(of_servers))


def _waiting_for(waited: Sequence[Wait]) -> Callable[[Interval], str]:
    """The label of a waiting interval: the rank it is for, if there is only one."""

    def name(interval: Interval) -> str:
        ranks = {wait.whom for wait in waited if interval[0] <= wait.start_us < interval[1]}
        return f"waiting for rank {', '.join(map(str, sorted(ranks)))}" if ranks else "waiting for a lock"

    return name
