"""Defines the measured all-reduces: teams, methods and message sizes. Plain values; nothing is measured here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parallax.cluster.team_names import GROUP, HOST, LEADERS, WORKERS
from parallax.plans.sum_methods import HOST_FIRST, METHODS

_LEAST_BYTES, _MOST_BYTES, _STEP, _QUICK_STEP = 1 << 6, 1 << 22, 4, 16
_TOO_LONG = 3.0
_TOO_LONG_FROM_BYTES = 1 << 15  # below it rounds dominate, and a slow method may be fast for longer messages


@dataclass(frozen=True, slots=True)
class SumTeam:
    """A team that is measured together.

    Attributes:
        among: WORKERS; GROUP, in all islands concurrently; HOST, on all hosts concurrently; or LEADERS.
        workers_by_host: of its members.
    """

    among: str
    workers_by_host: tuple[int, ...]


def sum_teams(workers_by_host: Sequence[int], has_islands: bool = False) -> tuple[SumTeam, ...]:
    """The measured teams: all workers; with several hosts also one per host and, if hosts are equal, those of one.

    Args:
        workers_by_host: of all hosts, or of those of an island.
        has_islands: whether they are an island's.
    """
    counts = tuple(count for count in workers_by_host if count)
    teams = [SumTeam(GROUP if has_islands else WORKERS, counts)]
    if len(counts) > 1 and max(counts) > 1:
        teams += [SumTeam(HOST, counts[:1])] if len(set(counts)) == 1 else []
        teams += [] if has_islands else [SumTeam(LEADERS, (1,) * len(counts))]
    return tuple(teams)


def methods_of(workers_by_host: Sequence[int]) -> tuple[str, ...]:
    """The methods that differ for these numbers of workers per host."""
    is_shared = max(workers_by_host) > 1
    return tuple(method for method in METHODS if is_shared or method not in HOST_FIRST)


def sizes_of(quick: bool) -> tuple[int, ...]:
    """Message sizes in bytes.

    Args:
        quick: fewer sizes.
    """
    sizes = [_LEAST_BYTES]
    while sizes[-1] < _MOST_BYTES:
        sizes.append(min(sizes[-1] * (_QUICK_STEP if quick else _STEP), _MOST_BYTES))
    return tuple(sizes)


def drop_slow(message_bytes: int, seconds: dict[str, float]) -> tuple[str, ...]:
    """The methods to measure with longer messages too, given the seconds at one size."""
    if message_bytes < _TOO_LONG_FROM_BYTES:
        return tuple(seconds)
    return tuple(method for method, took_s in seconds.items() if took_s <= _TOO_LONG * min(seconds.values()))
