"""Measures clock offsets by round trips.

An offset is added to a clock's time to get the time of another clock, rank 0's or the launching machine's, in
microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ping:
    """One request to a peer for its time.

    Attributes:
        sent_us: when it was sent, on the local clock.
        answered_us: the time on the peer's clock.
        received_us: when the answer arrived, on the local clock.
    """

    sent_us: float
    answered_us: float
    received_us: float


@dataclass(frozen=True, slots=True)
class Offset:
    """A measured clock offset.

    Attributes:
        at_us: when, on the local clock.
        offset_us: to be added to the local clock.
        uncertainty_us: the largest error, in either direction.
    """

    at_us: float
    offset_us: float
    uncertainty_us: float


SAME_CLOCK = Offset(0, 0, 0)


def best_offset(pings: Sequence[Ping]) -> Offset:
    """The offset from the request with the shortest round trip (as in NTP: RFC 5905, section 10)."""
    best = min(pings, key=lambda p: p.received_us - p.sent_us)
    middle_us = (best.sent_us + best.received_us) / 2
    return Offset(middle_us, best.answered_us - middle_us, (best.received_us - best.sent_us) / 2)


def offset_at(offsets: Sequence[Offset], at_us: float) -> float:
    """Interpolates the offset linearly at a time between the first and the last measurement."""
    first, last = offsets[0], offsets[-1]
    if last.at_us <= first.at_us:
        return first.offset_us
    share = min(max((at_us - first.at_us) / (last.at_us - first.at_us), 0.0), 1.0)
    return first.offset_us + share * (last.offset_us - first.offset_us)
