"""Measures clock offsets by round trips.

An offset is added to a clock's time to get the time of another clock, rank 0's or the launching machine's, in
microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ping:
    """One question to the other for its time.

    Attributes:
        sent_us: when it was asked, on the own clock.
        answered_us: what the other's clock said.
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
