"""Assigns the rows of a table that is sharded over the workers to owners.

Shares are equal, unless links differ by more than the fit error of their measurement: then workers behind a slow link
own fewer rows. Shares are whole slots of a short pattern, so that row r belongs to worker pattern[r % len(pattern)].

With the share s of the rows and U_h touched rows, host h needs max((1 - s) U_h, s (the others' U)) row_bytes / rate for
a phase: the bytes that it requests, or those requested from it. So s = U_h / sum(U) is best whatever the rate: a slow
host gains nothing by owning fewer rows, as it has to fetch the rows that it cedes. Unequal shares pay off for a slow
send direction, and for hosts whose touched rows differ.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from parallax.cluster.profiles import ClusterProfile
from parallax.graph.ownership import Ownership
from parallax.plans.plan import Layout

MOST_SLOTS = 8
"""Maximum slots of one worker in a pattern. A pattern stays short; shares are as fine as an eighth of the largest."""

ALL_SLOTS = 2
"""Up to this number of kinds of hosts every pattern is tried; beyond, one kind is changed at a time."""


@dataclass(frozen=True, slots=True)
class Shares:
    """Slots of every worker, by rank, without a common divisor."""

    slots: tuple[int, ...]

    @property
    def by_worker(self) -> tuple[float, ...]:
        """The share of all rows of each worker."""
        total = sum(self.slots)
        return tuple(slots / total for slots in self.slots)

    @property
    def pattern(self) -> tuple[int, ...]:
        """The owners of consecutive rows, interleaved; empty when all shares are equal.

        Smooth weighted round-robin: in each round every worker gains its slots, the one with the most (the first of
        equal ones) gets the row and loses as much as all gained. A vocabulary sorted by frequency stays balanced.
        """
        if len(set(self.slots)) == 1:
            return ()
        total, gained, owners = sum(self.slots), [0] * len(self.slots), []
        for _ in range(total):
            gained = [have + slots for have, slots in zip(gained, self.slots, strict=True)]
            owner = max(range(len(gained)), key=lambda worker: (gained[worker], -worker))
            gained[owner] -= total
            owners.append(owner)
        return tuple(owners)

    @property
    def ownership(self) -> Ownership:
        """The map from rows to owners."""
        workers = len(self.slots)
        return Ownership(self.pattern, workers) if self.pattern else Ownership.even(workers)


def equal_shares(workers: int) -> Shares:
    """Equal shares for all workers."""
    return Shares((1,) * workers)


@dataclass(frozen=True, slots=True)
class VariableKinds:
    """Hosts with workers, classified by the rate of their links: the kind of each host, or None without workers.

    Attributes:
        of_host: by host number.
        rates: bytes per second of each kind, the slower direction of its fastest host; the fastest kind first.
    """

    of_host: tuple[int | None, ...]
    rates: tuple[float, ...]


def kinds_of(layout: Layout, cluster: ClusterProfile) -> VariableKinds:
    """Classifies hosts: rates within the measurement noise of each other are of one kind.

    The noise is the median relative error of the fit of an all-to-all, as its samples were sent over these links.
    """
    line = cluster.across.get("alltoall")
    noise = line.residual if line is not None else 0.0
    rates = {
        host: min(cluster.hosts[host].out_bytes_per_s, cluster.hosts[host].in_bytes_per_s)
        for host, workers in enumerate(layout.hosts)
        if workers
    }
    kind_rates: list[float] = []
    kind: dict[int, int] = {}
    for host, rate in sorted(rates.items(), key=lambda item: (-item[1], item[0])):
        if not kind_rates or rate < kind_rates[-1] * (1 - noise):
            kind_rates.append(rate)
        kind[host] = len(kind_rates) - 1
    return VariableKinds(tuple(kind.get(host) for host in range(len(layout.hosts))), tuple(kind_rates))


def shares_of(layout: Layout, kinds: VariableKinds, slots: tuple[int, ...]) -> Shares:
    """Shares in which every worker on a host of a kind has that kind's slots."""
    divisor = math.gcd(*slots)
    return Shares(tuple(slots[kinds.of_host[host] or 0] // divisor for host in layout.host_by_rank))


def all_slots(kinds: VariableKinds) -> Iterator[tuple[int, ...]]:
    """Every distinct pattern in which a slower kind has no more slots than a faster one; equal shares first."""
    numbers = range(MOST_SLOTS, -1, -1)
    seen = set()
    for slots in itertools.product(numbers, repeat=len(kinds.rates)):
        if slots[0] and list(slots) == sorted(slots, reverse=True):
            divisor = math.gcd(*slots)
            reduced = tuple(s // divisor for s in slots)
            if reduced not in seen:
                seen.add(reduced)
                yield reduced


def slots_by_rate(kinds: VariableKinds) -> tuple[int, ...]:
    """Slots in proportion to the rates: the start of a search."""
    return tuple(max(0, round(MOST_SLOTS * rate / kinds.rates[0])) for rate in kinds.rates)
