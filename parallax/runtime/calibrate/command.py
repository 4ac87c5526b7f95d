"""`parallax calibrate`: starts the measuring job, shows its progress, and writes the profile.

The launcher of training jobs starts the job, with their settings and a server on each host. A host without workers gets
one for the measurement. This module parses the output of rank 0: one sealed line per message.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from tqdm import tqdm

from parallax.base.errors import ConfigError, LaunchError
from parallax.base.strict import Amount, Count
from parallax.base.types import JsonObject
from parallax.cluster.machines import Cluster
from parallax.cluster.profile_files import check_writable, save_profile
from parallax.plans.sum_methods import Method
from parallax.report.show import show
from parallax.runtime.calibrate.least_squares import Measurements, TimedPoint, TimedSum, profile_of
from parallax.runtime.calibrate.points import Point
from parallax.runtime.calibrate.ranks import ISLANDS, QUICK
from parallax.runtime.calibrate.table import profile_table
from parallax.runtime.launcher.job import Job, cluster_named, worker_defaults
from parallax.runtime.launcher.launch import launch
from parallax.runtime.supervisor.control import MARK, DamagedMessage
from parallax.runtime.supervisor.sealed_files import value_of
from parallax.runtime.worker.job_message import JobMessage
from parallax.settings.environment import python_path_with, with_defaults

_RANKS = "parallax.runtime.calibrate.ranks"
_RANK_0 = b"[0] "
_EVERY_S = 0.5


def calibrate(resource: str | None, workers: int | None, output: str, quick: bool) -> int:
    """Measures a cluster and writes its profile.

    Args:
        resource: a resource file; None for this machine.
        workers: on this machine, if there is no file.
        output: the file to write when everything has been measured.
        quick: fewer sizes, subsets and rounds.

    Returns:
        The exit status: 0, or that of the job, which has reported its failure.

    Raises:
        ParallaxError: the resource file, the output or the number of workers is invalid, or the job cannot start.
    """
    cluster = _measurable(cluster_named(resource, workers))
    check_writable(Path(output))
    output_stream = _RankOutput()
    try:
        status = launch(_job(cluster, quick), stdout=output_stream).status  # type: ignore[arg-type]  # it needs no more of a stream
    finally:
        output_stream.close()
    if status:
        return status
    measured = output_stream.measurements()
    profile = profile_of([host.address for host in cluster.hosts], measured)
    save_profile(profile, Path(output))
    held_out = [sample for sample in measured.samples if sample.point.is_held_out]
    show(profile_table(profile, held_out))
    return 0


def _measurable(cluster: Cluster) -> Cluster:
    """The cluster with a worker on each host.

    Raises:
        ConfigError: there is one worker only.
    """
    hosts = tuple(replace(host, num_workers=max(host.num_workers, 1)) for host in cluster.hosts)
    measurable = replace(cluster, hosts=hosts)
    if measurable.num_workers < 2:
        raise ConfigError(
            "A calibration measures the exchange between workers, but there is only one worker, on "
            f"{hosts[0].address}. Name more hosts or workers."
        )
    return measurable


def _job(cluster: Cluster, quick: bool) -> Job:
    servers = tuple(range(len(cluster.hosts)))
    hosts = tuple(number for number, host in enumerate(cluster.hosts) for _ in range(host.num_workers))
    addresses = tuple(host.address for host in cluster.hosts)
    variables = (
        *with_defaults(worker_defaults(cluster, servers)),
        ("PYTHONPATH", python_path_with(Path(__file__).resolve().parents[3])),
    )
    parcel = JobMessage("", b"", 0, hosts, servers, addresses, cluster.ports)
    islands = cluster.num_islands if cluster.num_islands < len(cluster.hosts) else 1  # of a host each are plain hosts
    options = (*([QUICK] if quick else []), *([f"{ISLANDS}{islands}"] if islands > 1 else []))
    program = ("-m", "parallax.runtime.worker.main", "-m", _RANKS, *options)
    return Job(program, cluster, servers, variables, input=parcel.pieces())


class _RankMessage(msgspec.Struct, frozen=True, tag_field="kind", forbid_unknown_fields=True):
    """A message of rank 0 (ranks.py); `kind` selects one of the classes below."""


class _Total(_RankMessage, frozen=True, tag="total"):
    visits: Count


class _VisitedHosts(_RankMessage, frozen=True, tag="visited"):
    visits: Count


class _Sample(_RankMessage, frozen=True, tag="sample"):
    point: Point
    seconds: Amount


class _Hosts(_RankMessage, frozen=True, tag="hosts"):
    found: tuple[tuple[Count, Count], ...]


class _Links(_RankMessage, frozen=True, tag="links"):
    found: tuple[tuple[Amount, Amount], ...]


class _Between(_RankMessage, frozen=True, tag="between"):
    found: Amount


class _Slowdown(_RankMessage, frozen=True, tag="slowdown"):
    found: Amount


class _Sum(_RankMessage, frozen=True, tag="sum"):
    workers_by_host: tuple[Count, ...]
    method: Method
    message_bytes: Count
    seconds: Amount


_Message = _Total | _VisitedHosts | _Sample | _Hosts | _Links | _Between | _Slowdown | _Sum


class _RankOutput:
    """Parses rank 0's messages; the launcher's stream for the ranks' output. Other lines go to stderr."""

    def __init__(self) -> None:
        self._waiting = b""
        self._bar: Any = None
        self._found: JsonObject = {}
        self._samples: list[TimedPoint] = []
        self._sums: list[TimedSum] = []

    def isatty(self) -> bool:
        """False: it is no terminal."""
        return False

    def flush(self) -> None:
        """Does nothing: no output is buffered."""

    def write(self, data: bytes) -> int:
        """Processes complete or partial lines."""
        *lines, self._waiting = (self._waiting + data).split(b"\n")
        for line in lines:
            if line.startswith(_RANK_0 + MARK):
                self._process_line(line[len(_RANK_0) :])
            else:
                sys.stderr.buffer.write(line + b"\n")
        return len(data)

    def close(self) -> None:
        """Ends the progress bar."""
        if self._bar is not None:
            self._bar.close()

    def measurements(self) -> Measurements:
        """All measurements received.

        Raises:
            LaunchError: something is missing.
        """
        missing = [kind for kind in ("hosts", "slowdown") if kind not in self._found]
        if missing or not self._samples:
            raise LaunchError("The measuring job ended without results; an earlier message says why.")
        return Measurements(
            hosts=self._found["hosts"],
            rates=self._found.get("links", ()),
            samples=tuple(self._samples),
            slowdown=self._found["slowdown"],
            sums=tuple(self._sums),
            between=self._found.get("between"),
        )

    def _process_line(self, line: bytes) -> None:
        try:
            message: Any = value_of(line, _Message)  # type: ignore[arg-type]  # a union
        except DamagedMessage as error:
            raise LaunchError(f"Rank 0 of the measuring job sent a damaged message: {error}. Measure again.") from error
        if isinstance(message, _Total):
            self._bar = tqdm(total=message.visits, desc="measuring", unit="point", mininterval=_EVERY_S)
        elif isinstance(message, _VisitedHosts):
            if self._bar is not None:
                self._bar.update(message.visits)
        elif isinstance(message, _Sample):
            self._samples.append(TimedPoint(message.point, message.seconds))
        elif isinstance(message, _Sum):
            self._sums.append(TimedSum(message.workers_by_host, message.method, message.message_bytes, message.seconds))
        else:
            self._found[message.__struct_config__.tag] = message.found
