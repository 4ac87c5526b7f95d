"""The methods of an all-reduce, selected by message size (parallax/native/sums.h).

    doubling   recursive doubling: the whole message to the worker at distance 1, 2, 4, ... (log2 W rounds,
               log2 W n bytes)
    ring       around a ring, in W pieces, twice (2(W-1) rounds, 2(W-1)/W n bytes; Patarasuk and Yuan 2009)
    halving    half, a quarter, ... to the worker at distance 1, 2, 4, ..., and the same way back (2 log2 W rounds,
               2(W-1)/W n bytes; Rabenseifner 2004)
    leader     within each host in shared memory, then among the first workers of the hosts by recursive doubling
    slices     within each host in shared memory, then each slice among the workers of equal local rank on H hosts, by
               halving or a ring, or by doubling between two hosts (2(H-1)/H n bytes out of a host, the minimum)

Most exchanges at distances 1 and 2 are within a host, so halving sends less out of a host than a ring.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from parallax.base.strict import LARGEST, Count, Positive

DOUBLING, RING, HALVING, LEADER, SLICES = "doubling", "ring", "halving", "leader", "slices"
METHODS = (DOUBLING, RING, HALVING, LEADER, SLICES)
"""The methods, in the order of the enum in native code."""
HOST_FIRST = (LEADER, SLICES)

Method = Annotated[str, Meta(pattern="^(doubling|ring|halving|leader|slices)$")]

RING_FROM_BYTES = 1 << 20
"""The size from which a ring is at least as fast as halving: a step that reduces 5 MB among four hosts at 1 Gbit/s
takes 106 to 115 ms by a ring, and 118 to 122 ms by halving."""
LEADER_UP_TO_BYTES = 1 << 14
"""The size up to which latency dominates bandwidth."""
ANY_BYTES = LARGEST
MESSAGE_BYTES = 1 << 18
"""The size of a full message of several tensors: 10 ms of a link of 200 Mbit/s, compared to which the rounds of another
are short."""

ALIKE = 1.05
"""The ratio of durations up to which two methods are considered equally fast."""

_BETWEEN = 8  # interpolated sizes between two measured ones


@dataclass(frozen=True, slots=True)
class SumRule:
    """The method for messages up to a size.

    Attributes:
        up_to_bytes: the largest message of the rule.
        method: one of METHODS.
    """

    up_to_bytes: Count
    method: Method


@dataclass(frozen=True, slots=True)
class SumRules:
    """The methods of a team, by message size.

    Attributes:
        workers_by_host: the number of members on each host, in the order of ranks.
        rules: in ascending order of size; the last one applies to all longer messages.
    """

    workers_by_host: tuple[Positive, ...]
    rules: Annotated[tuple[SumRule, ...], Meta(min_length=1)]


def stated_rules(workers_by_host: Sequence[int]) -> tuple[SumRule, ...]:
    """The default methods, without measurements.

    Args:
        workers_by_host: the number of members on each host, in the order of ranks.
    """
    counts = [count for count in workers_by_host if count]
    if max(counts, default=1) > 1:
        return SumRule(LEADER_UP_TO_BYTES, LEADER), SumRule(ANY_BYTES, SLICES)
    if len(counts) == 2:
        return SumRule(RING_FROM_BYTES, DOUBLING), SumRule(ANY_BYTES, RING)
    if is_power_of_two(len(counts)):
        return SumRule(RING_FROM_BYTES, HALVING), SumRule(ANY_BYTES, RING)
    return (SumRule(ANY_BYTES, RING),)


def rules_for(workers_by_host: Sequence[int], known: Sequence[SumRules]) -> tuple[SumRule, ...]:
    """The methods of a team: measured ones for the same number of members on each host, or else the defaults.

    Args:
        workers_by_host: the number of members on each host, in the order of ranks.
        known: the measured methods.
    """
    counts = tuple(count for count in workers_by_host if count)
    known_rules = next((one.rules for one in known if one.workers_by_host == counts), None)
    return stated_rules(counts) if known_rules is None else known_rules


def fastest_rules(sizes_bytes: Sequence[int], seconds: Mapping[str, Sequence[float]]) -> tuple[SumRule, ...]:
    """The fastest method for each size, interpolated log-linearly between measured sizes.

    The method of shorter messages is kept unless another is faster by more than the measurement error.

    Args:
        sizes_bytes: the measured sizes, ascending.
        seconds: method -> the duration at each size, or at the first ones only.
    """
    points = [
        math.exp(math.log(low) + (math.log(high) - math.log(low)) * part / _BETWEEN)
        for low, high in itertools.pairwise(sizes_bytes)
        for part in range(_BETWEEN)
    ]
    points.append(float(sizes_bytes[-1]))
    fastest: list[str] = []
    for size in points:
        seconds_by_method = dict(_known_at(size, sizes_bytes, seconds))
        best = min(seconds_by_method, key=lambda method: (seconds_by_method[method], method))
        last = fastest[-1] if fastest else best
        fastest.append(last if seconds_by_method.get(last, math.inf) <= ALIKE * seconds_by_method[best] else best)
    rules = [
        SumRule(round(math.sqrt(low * high)), method)
        for (low, method), (high, other) in itertools.pairwise(zip(points, fastest, strict=True))
        if method != other
    ]
    return (*rules, SumRule(ANY_BYTES, fastest[-1]))


def seconds_at(size: float, sizes_bytes: Sequence[int], seconds: Sequence[float]) -> float | None:
    """The duration of a message in seconds, interpolated log-linearly; None above the measured sizes."""
    place = max(bisect.bisect_left(sizes_bytes, size), 1)
    if place >= len(seconds):
        return None if size > sizes_bytes[len(seconds) - 1] else seconds[-1]
    low, high = sizes_bytes[place - 1], sizes_bytes[place]
    part = (math.log(max(size, low)) - math.log(low)) / (math.log(high) - math.log(low))
    return math.exp(math.log(seconds[place - 1]) * (1 - part) + math.log(seconds[place]) * part)


def method_for(rules: Sequence[SumRule], message_bytes: float) -> str:
    """The method of a message by rules in ascending order of size."""
    place = bisect.bisect_left([rule.up_to_bytes for rule in rules], message_bytes)
    return rules[min(place, len(rules) - 1)].method


def rules_text(rules: Sequence[SumRule]) -> str:
    """The methods and the sizes at which they change, as text."""
    *before, last = rules
    return ", ".join([*(f"{rule.method} up to {rule.up_to_bytes:,} B" for rule in before), last.method])


def sent_out_of_host(workers_by_host: Sequence[int], method: str) -> float:
    """The bytes that the busiest host sends to others, as a multiple of the message; 0 for a single host.

    Args:
        workers_by_host: the number of members on each host, in the order of ranks.
        method: one of METHODS.
    """
    counts = [count for count in workers_by_host if count]
    if len(counts) < 2:
        return 0.0
    if method == LEADER:
        return _of_doubling([1] * len(counts))
    if method == SLICES:
        return 2 * (len(counts) - 1) / len(counts)
    if method == RING:
        return 2 * (sum(counts) - 1) / sum(counts)
    return _of_doubling(counts) if method == DOUBLING else _of_halving(counts)


def is_power_of_two(number: int) -> bool:
    """Whether a number is 2^k."""
    return number & (number - 1) == 0


def _known_at(
    size: float, sizes_bytes: Sequence[int], seconds: Mapping[str, Sequence[float]]
) -> Iterator[tuple[str, float]]:
    for method in METHODS:
        interpolated_s = seconds_at(size, sizes_bytes, seconds[method]) if seconds.get(method) else None
        if interpolated_s is not None:
            yield method, interpolated_s


def _of_doubling(counts: Sequence[int]) -> float:
    return _of_distances(counts, lambda _: 1.0)


def _of_halving(counts: Sequence[int]) -> float:
    return _of_distances(counts, lambda turn: 2 * 0.5 ** (turn + 1))  # reduce-scatter, then all-gather


def _of_distances(counts: Sequence[int], part: Callable[[int], float]) -> float:
    """The maximum that a host sends if round k sends a part to the worker at distance 2^k.

    If the number of workers is not a power of two, some send their message to a neighbor first and receive the result.
    """
    host_of = [host for host, count in enumerate(counts) for _ in range(count)]
    members = 1 << len(host_of).bit_length() - 1
    extra = len(host_of) - members
    sent = [0.0] * len(counts)
    for giver in range(0, 2 * extra, 2):
        if host_of[giver] != host_of[giver + 1]:
            sent[host_of[giver]] += 1
            sent[host_of[giver + 1]] += 1
    ranks = [2 * place + 1 if place < extra else place + extra for place in range(members)]
    for turn in range(members.bit_length() - 1):
        for place, rank in enumerate(ranks):
            if host_of[ranks[place ^ 1 << turn]] != host_of[rank]:
                sent[host_of[rank]] += part(turn)
    return max(sent)
