"""Which sums are measured, among whom, and in which sizes. Plain values; nothing is measured here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parallax.cluster.team_names import HOST, LEADERS, WORKERS
from parallax.plans.sum_methods import HOST_FIRST, METHODS

_LEAST_BYTES, _MOST_BYTES, _STEP, _QUICK_STEP = 1 << 6, 1 << 22, 4, 16
_TOO_LONG = 3.0
_TOO_LONG_FROM_BYTES = 1 << 15  # below it rounds count, and a method that is slow may be fast when messages are longer


@dataclass(frozen=True, slots=True)
class SumTeam:
    """Those that are measured together.

    Attributes:
        among: WORKERS; HOST, on all hosts at once; or LEADERS.
        workers_by_host: of them.
    """

    among: str
    workers_by_host: tuple[int, ...]


def sum_teams(workers_by_host: Sequence[int]) -> tuple[SumTeam, ...]:
    """Who is measured: all workers; where hosts have equally many, several, also those of a host, and one a host."""
    counts = tuple(count for count in workers_by_host if count)
    found = [SumTeam(WORKERS, counts)]
    if len(counts) > 1 and max(counts) > 1:
        found += [SumTeam(HOST, counts[:1])] if len(set(counts)) == 1 else []
        found.append(SumTeam(LEADERS, (1,) * len(counts)))
    return tuple(found)


def methods_of(workers_by_host: Sequence[int]) -> tuple[str, ...]:
    """The methods that differ where hosts have so many workers."""
    is_shared = max(workers_by_host) > 1
    return tuple(method for method in METHODS if is_shared or method not in HOST_FIRST)


def sizes_of(quick: bool) -> tuple[int, ...]:
    """Bytes of the messages.

    Args:
        quick: fewer.
    """
    found = [_LEAST_BYTES]
    while found[-1] < _MOST_BYTES:
        found.append(min(found[-1] * (_QUICK_STEP if quick else _STEP), _MOST_BYTES))
    return tuple(found)


def drop_slow(message_bytes: int, seconds: dict[str, float]) -> tuple[str, ...]:
    """The methods that are measured of longer messages too, by the seconds of a size."""
    if message_bytes < _TOO_LONG_FROM_BYTES:
        return tuple(seconds)
    return tuple(method for method, took_s in seconds.items() if took_s <= _TOO_LONG * min(seconds.values()))
