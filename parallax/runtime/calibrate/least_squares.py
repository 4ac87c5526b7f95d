"""Fits a `ClusterProfile` to measurements by least squares of the relative error.

For each operation, with t the measured seconds of n members whose busiest link carries b bytes at rate r, the fit is

    minimise  sum over samples ((latency + byte b + b / r - overlap min(latency, b / r) - t) / t)^2
    latency = base + per_peer (n - 1);  base, per_peer, byte >= 0;  0 <= overlap <= 1

Without overlap it is linear, and solved by non-negative least squares (Lawson and Hanson 1974, chapter 23); from there,
and from the same with full overlap, by a trust region within the bounds (Branch, Coleman and Li 1999). With a single
number of members, base and latency per peer cannot be separated: all of it is the base, and the latency per peer is 0.
The fit is then valid for that number only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parallax.base.types import Array
from parallax.cluster.profiles import (
    CLUSTER_PROFILE_VERSION,
    OPERATIONS,
    AlphaBeta,
    ClusterProfile,
    HostProfile,
    SumTimings,
)
from parallax.plans.sum_methods import sent_out_of_host
from parallax.runtime.calibrate.points import ACROSS, WITHIN, Point

_ALIKE = 1.15
"""All hosts concurrently count as fast as one alone if they take at most this factor longer: measurement noise."""

_LEAST = 1e-15

_SCALES = (1e-3, 1e-3, 1e-3, 1.0)
"""Typical values of base, latency per peer, a megabyte and overlap, in seconds."""


@dataclass(frozen=True, slots=True)
class TimedPoint:
    """The seconds of a point: the median over the rounds."""

    point: Point
    seconds: float


@dataclass(frozen=True, slots=True)
class TimedSum:
    """The seconds of a sum by one method: the median over the rounds.

    Attributes:
        workers_by_host: the participating workers of each host.
        method: a method of parallax/plans/sum_methods.py.
        message_bytes: the bytes of each worker's message.
        seconds: the duration on the slowest worker.
    """

    workers_by_host: tuple[int, ...]
    method: str
    message_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Measurements:
    """The job's measurements.

    Attributes:
        hosts: (cores, memory in bytes) of each host.
        rates: (sending, receiving) of each host's link in bytes per second; empty with one host.
        samples: of all points, including those held out.
        slowdown: how many times longer a computation takes when all hosts compute than on one alone.
        sums: sums by each method, in ascending order of size.
        between: the rate of the slowest link between islands, in bytes per second; None without any.
    """

    hosts: tuple[tuple[int, int], ...]
    rates: tuple[tuple[float, float], ...]
    samples: tuple[TimedPoint, ...]
    slowdown: float
    sums: tuple[TimedSum, ...] = ()
    between: float | None = None


def profile_of(names: Sequence[str], measured: Measurements) -> ClusterProfile:
    """The profile of the hosts called `names`."""
    rates = measured.rates or ((0.0, 0.0),)
    hosts = tuple(
        HostProfile(name, cores, memory, _round(out), _round(into))
        for name, (cores, memory), (out, into) in zip(names, measured.hosts, rates, strict=True)
    )
    lines = {where: _lines(measured.samples, where, hosts) for where in (ACROSS, WITHIN)}
    shared = None if measured.slowdown <= _ALIKE else _round(len(hosts) / measured.slowdown)
    sums = tuple(sums_of(team_samples, hosts) for team_samples in _by_team(measured.sums))
    between = None if measured.between is None else _round(measured.between)
    return ClusterProfile(CLUSTER_PROFILE_VERSION, hosts, lines[ACROSS], lines[WITHIN], shared, sums, between)


def sums_of(samples: Sequence[TimedSum], hosts: Sequence[HostProfile]) -> SumTimings:
    """The sums of one team, with the fit of the fastest method of each size.

    Args:
        samples: of the team; each method has those of rising sizes, from the first one on.
        hosts: of the cluster.
    """
    counts = samples[0].workers_by_host
    sizes = tuple(sorted({sample.message_bytes for sample in samples}))
    seconds: dict[str, tuple[float, ...]] = {}
    for sample in samples:
        seconds[sample.method] = (*seconds.get(sample.method, ()), _round(sample.seconds))
    several, members, points = len(counts) > 1, len(counts) if len(counts) > 1 else counts[0], []
    for place, size in enumerate(sizes):
        method, took_s = min(((m, of[place]) for m, of in seconds.items() if place < len(of)), key=lambda one: one[1])
        part = sent_out_of_host(counts, method) if several else 2 * (members - 1) / members
        where = ACROSS if several else WITHIN
        points.append(TimedPoint(Point(where, members, "allreduce", size // 4, part * size, False), took_s))
    return SumTimings(counts, sizes, seconds, fit_line(points, hosts))


def _by_team(samples: Sequence[TimedSum]) -> list[list[TimedSum]]:
    samples_by_team: dict[tuple[int, ...], list[TimedSum]] = {}
    for sample in samples:
        samples_by_team.setdefault(sample.workers_by_host, []).append(sample)
    return list(samples_by_team.values())


def rate_of(point: Point, hosts: Sequence[HostProfile]) -> float | None:
    """Bytes per second of the slowest link among a point's members; None within a host."""
    if point.where == WITHIN:
        return None
    return min(min(host.out_bytes_per_s, host.in_bytes_per_s) for host in hosts[: point.members])


def errors_of(profile: ClusterProfile, samples: Sequence[TimedPoint]) -> dict[tuple[str, str], list[float]]:
    """(where, operation) -> (predicted - measured) / measured, for each of the samples."""
    errors_by_line: dict[tuple[str, str], list[float]] = {}
    for sample in samples:
        point = sample.point
        lines: Mapping[str, AlphaBeta] = profile.across if point.where == ACROSS else profile.within
        predicted = lines[point.operation].seconds(point.members, point.link_bytes, rate_of(point, profile.hosts))
        errors_by_line.setdefault((point.where, point.operation), []).append(predicted / sample.seconds - 1)
    return errors_by_line


def fit_line(samples: Sequence[TimedPoint], hosts: Sequence[HostProfile]) -> AlphaBeta:
    """The fit of one operation."""
    from scipy.optimize import least_squares, nnls

    points = [sample.point for sample in samples]
    seconds = np.array([sample.seconds for sample in samples])
    rates = [rate_of(point, hosts) for point in points]
    on_link = np.array([p.link_bytes / rate if rate else 0.0 for p, rate in zip(points, rates, strict=True)])
    peers = np.array([point.members - 1.0 for point in points])
    if len(set(peers)) == 1:
        peers = np.zeros(len(points))
    link_bytes = np.array([point.link_bytes for point in points])

    def errors(values: Array) -> Any:
        base, per_peer, per_megabyte, overlap = values
        latency = base + per_peer * peers
        shared = overlap * np.minimum(latency, on_link)
        return (latency + per_megabyte * 1e-6 * link_bytes + on_link - shared) / seconds - 1

    columns = np.stack([np.ones(len(points)), peers, 1e-6 * link_bytes], axis=1)
    start, _ = nnls(columns / seconds[:, None], (seconds - on_link) / seconds)
    coefficients = np.append(start, 0.0)
    if on_link.any():
        bounds = ([0.0] * 4, [np.inf, np.inf, np.inf, 1.0])
        begun = (np.append(start, overlap) for overlap in (0.0, 1.0))
        solutions = [least_squares(errors, values, bounds=bounds, x_scale=_SCALES) for values in begun]
        coefficients = min(solutions, key=lambda one: float(one.cost)).x
    if not peers.any():  # nothing depends on it, so it is still at the start of the search
        coefficients[1] = 0.0
    residual = float(np.median(np.abs(errors(coefficients))))
    base_s, per_peer_s, megabyte_s, overlap = map(float, coefficients)
    return AlphaBeta(
        base_s=_round(base_s),
        per_peer_s=_round(per_peer_s),
        byte_s=_round(1e-6 * megabyte_s),
        residual=_round(residual),
        samples=len(samples),
        overlap=_round(overlap),
    )


def _lines(samples: Sequence[TimedPoint], where: str, hosts: Sequence[HostProfile]) -> dict[str, AlphaBeta]:
    line_by_operation = {}
    for operation in OPERATIONS:
        line_samples = [s for s in samples if (s.point.where, s.point.operation) == (where, operation)]
        fitted = [sample for sample in line_samples if not sample.point.is_held_out]
        if fitted:
            line_by_operation[operation] = fit_line(fitted, hosts)
    return line_by_operation


def _round(value: float) -> float:
    """Rounds to six digits: more are noise; a value that a bound has kept just above 0 becomes 0."""
    return float(f"{value:.6g}") if value > _LEAST else 0.0
