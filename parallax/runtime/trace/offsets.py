"""How far clocks are apart: of workers by questions and answers, of servers by what they sent and received.

An offset is what is added to a clock's time to get rank 0's, in microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from parallax.runtime.trace.ops import TRANSFER, Step


@dataclass(frozen=True, slots=True)
class Ping:
    """One question to rank 0 for its time.

    Attributes:
        sent_us: when it was asked, on the own clock.
        answered_us: what rank 0's clock said.
        received_us: when the answer was there, on the own clock.
    """

    sent_us: float
    answered_us: float
    received_us: float


@dataclass(frozen=True, slots=True)
class Offset:
    """An offset as it was measured.

    Attributes:
        at_us: when, on the own clock.
        offset_us: what to add to the own clock.
        uncertainty_us: at most so wrong is it, either way.
    """

    at_us: float
    offset_us: float
    uncertainty_us: float


SAME_CLOCK = Offset(0, 0, 0)


def best_offset(pings: Sequence[Ping]) -> Offset:
    """The offset by the question that came back soonest (as NTP takes it: RFC 5905, section 10)."""
    best = min(pings, key=lambda p: p.received_us - p.sent_us)
    middle_us = (best.sent_us + best.received_us) / 2
    return Offset(middle_us, best.answered_us - middle_us, (best.received_us - best.sent_us) / 2)


def offset_at(offsets: Sequence[Offset], at_us: float) -> float:
    """The offset at a time between the first and the last that were measured, taken to change evenly between them."""
    first, last = offsets[0], offsets[-1]
    if last.at_us <= first.at_us:
        return first.offset_us
    share = min(max((at_us - first.at_us) / (last.at_us - first.at_us), 0.0), 1.0)
    return first.offset_us + share * (last.offset_us - first.offset_us)


@dataclass(frozen=True, slots=True)
class Bounds:
    """An offset lies between these."""

    low_us: float = float("-inf")
    high_us: float = float("inf")


def server_bounds(steps: Iterable[Step], own_offset_us: float) -> dict[int, Bounds]:
    """Between what the offsets of servers' clocks are: nothing is received before it was there.

    Args:
        steps: of one worker; a value that came more than once in a step says nothing.
        own_offset_us: of that worker.
    """
    found: dict[int, Bounds] = {}
    for step in steps:
        made: dict[str, list[tuple[int | None, int]]] = {}
        for op in step.ops:
            if op.type != TRANSFER:
                made.setdefault(op.name, []).append((op.server, op.end_us))
        for op in step.ops:
            if op.type != TRANSFER or len(made.get(op.name, ())) != 1:
                continue
            sender, sent_us = made[op.name][0]
            if sender is None and op.server is not None:
                found[op.server] = both(found.get(op.server), Bounds(low_us=sent_us + own_offset_us - op.end_us))
            elif sender is not None and op.server is None:
                found[sender] = both(found.get(sender), Bounds(high_us=op.end_us + own_offset_us - sent_us))
    return found


def both(one: Bounds | None, other: Bounds) -> Bounds:
    """What holds when both do."""
    if one is None:
        return other
    return Bounds(max(one.low_us, other.low_us), min(one.high_us, other.high_us))


def offset_between(bounds: Bounds) -> Offset | None:
    """The middle of two bounds; None when one is missing."""
    if bounds.low_us == float("-inf") or bounds.high_us == float("inf"):
        return None
    # Clocks drift, and then the bounds may cross by a little.
    half_us = abs(bounds.high_us - bounds.low_us) / 2
    return Offset(0, (bounds.low_us + bounds.high_us) / 2, half_us)
