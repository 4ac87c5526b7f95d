"""Derives the cluster profile of hosts that were not measured from calibrations of others: other links, more hosts.

Hosts are copies of the calibrated ones, in turn. Costs that do not follow from links (rounds, copies, the overlap of
the two) come from the calibration of about the same link rate; between two, linearly in the seconds of a byte on the
link:

    t = (1/r - 1/r1) / (1/r2 - 1/r1),    value = (1 - t) value1 + t value2

Simplified: outside the calibrated range the nearest calibration holds, and a round among more members than were
calibrated follows its line, base_s + per_peer_s (n - 1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from parallax.base.errors import PlanError
from parallax.cluster.profiles import AlphaBeta, ClusterProfile, HostProfile


@dataclass(frozen=True, slots=True)
class NewHost:
    """A host that was not measured.

    Attributes:
        name: as in the resource file.
        link_bytes_per_s: of its link, in both directions; None for that of the host that it copies.
    """

    name: str
    link_bytes_per_s: float | None = None


def derive_profile(profiles: Sequence[ClusterProfile], hosts: Sequence[NewHost], shares_cores: bool) -> ClusterProfile:
    """The profile of other hosts.

    Args:
        profiles: one calibration, or several of links with different rates.
        hosts: the hosts of the new profile.
        shares_cores: whether the new hosts share the processor cores that the calibrated ones share, as emulated hosts
            of one machine do; else each has its own cores.

    Raises:
        PlanError: there is no calibration, no new host, or only a calibration of one host for several.
    """
    if not profiles or not hosts:
        raise PlanError("A profile is derived from at least one calibration, for at least one host.")
    measured = next((p for p in profiles if len(p.hosts) < 2), None)
    if measured is not None and len(hosts) > 1:
        raise PlanError(
            f"A profile of {len(hosts)} hosts is derived from calibrations of several hosts, and one is of "
            f"{measured.hosts[0].name} alone: nothing tells its links. Calibrate two hosts or more."
        )
    ordered = sorted(profiles, key=_rate)
    copies = [ordered[-1].hosts[n % len(ordered[-1].hosts)] for n in range(len(hosts))]
    host_profiles = tuple(_host(new, copy) for new, copy in zip(hosts, copies, strict=True))
    between = _between(ordered, _slowest(host_profiles))
    return replace(between, hosts=host_profiles, shared_cores=between.shared_cores if shares_cores else None)


def _host(new: NewHost, copy: HostProfile) -> HostProfile:
    rate = new.link_bytes_per_s
    return replace(
        copy, name=new.name, out_bytes_per_s=rate or copy.out_bytes_per_s, in_bytes_per_s=rate or copy.in_bytes_per_s
    )


def _between(ordered: Sequence[ClusterProfile], rate: float) -> ClusterProfile:
    """The calibration for a link rate, interpolated between two."""
    above = next((n for n, profile in enumerate(ordered) if _rate(profile) >= rate), len(ordered) - 1)
    slow, fast = ordered[max(above - 1, 0)], ordered[above]
    if not rate or _rate(slow) == _rate(fast):
        return fast
    t = min(1.0, max(0.0, (1 / rate - 1 / _rate(slow)) / (1 / _rate(fast) - 1 / _rate(slow))))
    cores = slow.shared_cores, fast.shared_cores
    return replace(
        fast,
        across=_lines(slow.across, fast.across, t),
        within=_lines(slow.within, fast.within, t),
        shared_cores=_interpolate(cores[0] or cores[1], cores[1] or cores[0], t),
    )


def _lines(slow: Mapping[str, AlphaBeta], fast: Mapping[str, AlphaBeta], t: float) -> dict[str, AlphaBeta]:
    line_by_operation = {}
    for operation in sorted(set(slow) & set(fast)):
        a, b = slow[operation], fast[operation]
        mixed = {name: (1 - t) * getattr(a, name) + t * getattr(b, name) for name in _MIXED}
        line_by_operation[operation] = AlphaBeta(
            **mixed, residual=max(a.residual, b.residual), samples=a.samples + b.samples
        )
    return line_by_operation


_MIXED = ("base_s", "per_peer_s", "byte_s", "overlap")


def _interpolate(a: float | None, b: float | None, t: float) -> float | None:
    return None if a is None or b is None else (1 - t) * a + t * b


def _slowest(hosts: Sequence[HostProfile]) -> float:
    return min(min(host.out_bytes_per_s, host.in_bytes_per_s) for host in hosts)


def _rate(profile: ClusterProfile) -> float:
    return _slowest(profile.hosts)
