"""Estimates the clock offsets between servers and workers from the messages that they exchanged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from parallax.runtime.trace.clocks import Offset
from parallax.runtime.trace.ops import TRANSFER, Step


@dataclass(frozen=True, slots=True)
class Bounds:
    """Lower and upper bounds of an offset."""

    low_us: float = float("-inf")
    high_us: float = float("inf")


def server_bounds(steps: Iterable[Step], own_offset_us: float) -> dict[int, Bounds]:
    """Bounds of the offsets of servers' clocks: no value is received before it was sent.

    Args:
        steps: of one worker; a value that arrived more than once in a step is ignored.
        own_offset_us: of that worker.
    """
    bounds_by_server: dict[int, Bounds] = {}
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
                bounds_by_server[op.server] = both(
                    bounds_by_server.get(op.server), Bounds(low_us=sent_us + own_offset_us - op.end_us)
                )
            elif sender is not None and op.server is None:
                bounds_by_server[sender] = both(
                    bounds_by_server.get(sender), Bounds(high_us=op.end_us + own_offset_us - sent_us)
                )
    return bounds_by_server


def both(one: Bounds | None, other: Bounds) -> Bounds:
    """The intersection of two bounds."""
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
