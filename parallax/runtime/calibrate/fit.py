"""From what was measured to a `ClusterProfile`: non-negative least squares, weighted for relative error.

For each operation, with t the measured seconds of n members whose busiest link carries b bytes at rate r, the fit is

    minimise  sum over samples ((base + per_peer (n - 1) + byte b + b / r - t) / t)^2,  base, per_peer, byte >= 0

(Lawson and Hanson 1974, chapter 23). With one number of members only, base and latency per peer cannot be told apart:
all of it is the base, and the latency per peer is 0. The fit is then right for that number and for no other.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from parallax.profiles import CLUSTER_PROFILE_VERSION, OPERATIONS, ClusterProfile, HostProfile, Line
from parallax.runtime.calibrate.points import ACROSS, WITHIN, Point

_ALIKE = 1.15
"""All hosts at once are as fast as one alone when they take no more than this times as long: noise of the measure."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The seconds of a point: the median over the rounds."""

    point: Point
    seconds: float


@dataclass(frozen=True, slots=True)
class Measured:
    """What the job has told.

    Attributes:
        hosts: (cores, memory in bytes) of each host.
        rates: (sending, receiving) of each host's link in bytes per second; empty with one host.
        samples: of all points, those held out too.
        slowdown: how many times longer a computation takes when all hosts are at it than on one alone.
    """

    hosts: tuple[tuple[int, int], ...]
    rates: tuple[tuple[float, float], ...]
    samples: tuple[Sample, ...]
    slowdown: float


def profile_of(names: Sequence[str], measured: Measured) -> ClusterProfile:
    """The profile of the hosts called `names`."""
    rates = measured.rates or ((0.0, 0.0),)
    hosts = tuple(
        HostProfile(name, cores, memory, _rounded(out), _rounded(into))
        for name, (cores, memory), (out, into) in zip(names, measured.hosts, rates, strict=True)
    )
    lines = {where: _lines(measured.samples, where, hosts) for where in (ACROSS, WITHIN)}
    shared = None if measured.slowdown <= _ALIKE else _rounded(len(hosts) / measured.slowdown)
    return ClusterProfile(CLUSTER_PROFILE_VERSION, hosts, lines[ACROSS], lines[WITHIN], shared)


def rate_of(point: Point, hosts: Sequence[HostProfile]) -> float | None:
    """Bytes per second of the slowest link among a point's members; None within a host."""
    if point.where == WITHIN:
        return None
    return min(min(host.out_bytes_per_s, host.in_bytes_per_s) for host in hosts[: point.members])


def errors_of(profile: ClusterProfile, samples: Sequence[Sample]) -> dict[tuple[str, str], list[float]]:
    """(where, operation) -> (predicted - measured) / measured, for each of the samples."""
    found: dict[tuple[str, str], list[float]] = {}
    for sample in samples:
        point = sample.point
        lines: Mapping[str, Line] = profile.across if point.where == ACROSS else profile.within
        predicted = lines[point.operation].seconds(point.members, point.link_bytes, rate_of(point, profile.hosts))
        found.setdefault((point.where, point.operation), []).append(predicted / sample.seconds - 1)
    return found


def fit_line(samples: Sequence[Sample], hosts: Sequence[HostProfile]) -> Line:
    """The fit of one operation."""
    from scipy.optimize import nnls

    points = [sample.point for sample in samples]
    seconds = np.array([sample.seconds for sample in samples])
    rates = [rate_of(point, hosts) for point in points]
    on_link = np.array([p.link_bytes / rate if rate else 0.0 for p, rate in zip(points, rates, strict=True)])
    peers = np.array([point.members - 1.0 for point in points])
    if len(set(peers)) == 1:
        peers = np.zeros(len(points))
    columns = np.stack([np.ones(len(points)), peers, np.array([float(p.link_bytes) for p in points])], axis=1)
    scales = np.maximum(columns.max(axis=0), 1.0)  # bytes are a million times the others
    found, _ = nnls(columns / scales / seconds[:, None], (seconds - on_link) / seconds)
    base_s, per_peer_s, byte_s = (_rounded(float(value)) for value in found / scales)
    errors = np.abs(columns @ (found / scales) + on_link - seconds) / seconds
    return Line(base_s, per_peer_s, byte_s, _rounded(float(statistics.median(errors))), len(samples))


def _lines(samples: Sequence[Sample], where: str, hosts: Sequence[HostProfile]) -> dict[str, Line]:
    found = {}
    for operation in OPERATIONS:
        own = [s for s in samples if (s.point.where, s.point.operation) == (where, operation)]
        fitted = [sample for sample in own if not sample.point.is_held_out]
        if fitted:
            found[operation] = fit_line(fitted, hosts)
    return found


def _rounded(value: float) -> float:
    """To six digits: more are noise."""
    return float(f"{value:.6g}")
