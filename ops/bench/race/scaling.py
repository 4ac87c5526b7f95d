"""Growth of throughput with the number of hosts, relative to the bound by bytes on the wire.

A step takes at least the time of its least bytes on a link, so the throughput of H hosts is at most

    T_bound(H) = units(H) / (least_bytes(H) / rate)

units per second, over all workers of all H hosts. From H1 to H2 hosts, throughput can therefore grow by
T_bound(H2) / T_bound(H1). The growth efficiency is the measured growth, T(H2) / T(H1), over that. Compute is left out:
on emulated hosts, which share their cores, it grows with the hosts and can only lower the efficiency.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ops.bench.race.results import Race

FORMULA = "(T(H2)/T(H1)) / (B(H2)/B(H1)), B(H) = units of all H hosts / (least bytes(H) / rate)"


@dataclass(frozen=True, slots=True)
class Growth:
    """The growth of one system between two numbers of hosts.

    Attributes:
        system: name of the system.
        hosts: the smaller number and the larger one.
        measured: units/s on the larger number over those on the smaller.
        allowed: the same for the bound.
    """

    system: str
    hosts: tuple[int, int]
    measured: float
    allowed: float

    @property
    def efficiency(self) -> float:
        """Measured over allowed growth; above 1 if the smaller number of hosts was further from its bound."""
        return self.measured / self.allowed


def families(races: Sequence[Race]) -> tuple[tuple[int, ...], ...]:
    """Groups races that differ in the number of hosts only: indices by number of hosts, families by their first race.

    A race without a counterpart is a family of one. Of two equal races, the second is in a second family.
    """
    race_by_hosts: dict[tuple[object, ...], dict[int, int]] = {}
    for index, race in enumerate(races):
        alike = (race.model, race.settings, race.workers, race.rate_bytes_per_s, race.unit)
        again = 0
        while race.hosts in (family := race_by_hosts.setdefault((*alike, again), {})):
            again += 1
        family[race.hosts] = index
    return tuple(tuple(by_hosts[hosts] for hosts in sorted(by_hosts)) for by_hosts in race_by_hosts.values())


def systems(races: Sequence[Race]) -> tuple[str, ...]:
    """Returns all systems of the races, in the order of their first appearance."""
    return tuple(dict.fromkeys(run.system for race in races for run in race.runs))


def units_per_s(race: Race, system: str) -> float | None:
    """Returns a system's throughput over all workers, by its median step, in undilated time; None if it failed."""
    for run in race.runs:
        if run.system == system and run.turns and not run.problem:
            return race.units / run.step_s * race.dilation
    return None


def bound_per_s(race: Race) -> float | None:
    """Returns T_bound, the most units per second that the least bytes allow; None without a bound."""
    return race.units / race.wire_s * race.dilation if race.wire_s else None


def growths(races: Sequence[Race], system: str) -> tuple[Growth | None, ...]:
    """Returns a system's growth over each pair of `host_pairs`; None if an end was not measured or has no bound."""
    return tuple(_growth(races[a], races[b], system) for a, b in host_pairs(len(races)))


def host_pairs(count: int) -> tuple[tuple[int, int], ...]:
    """Returns the pairs among `count` races of a family to compare: each with the next, and the first with the last."""
    pairs = [(i, i + 1) for i in range(count - 1)]
    return tuple([*pairs, (0, count - 1)] if count > 2 else pairs)


def _growth(few: Race, many: Race, system: str) -> Growth | None:
    rate, larger_rate = units_per_s(few, system), units_per_s(many, system)
    bound, larger_bound = bound_per_s(few), bound_per_s(many)
    if rate is None or larger_rate is None or bound is None or larger_bound is None:
        return None
    return Growth(system, (few.hosts, many.hosts), larger_rate / rate, larger_bound / bound)
