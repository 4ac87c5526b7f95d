"""Measured profiles: a cluster's links; a model's touched rows and compute time per step.

A plan's predicted seconds are computed from these, and from nothing else. Both are frozen values, stored as JSON.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, TypeVar

from msgspec import Meta

from parallax.base.errors import PlanError
from parallax.base.strict import Amount, Count, Finite, Positive, Text, checked_value, read_json, shown
from parallax.plans.sum_methods import Method, SumRules, fastest_rules

CLUSTER_PROFILE_VERSION = 1
MODEL_PROFILE_VERSION = 1

_Profile = TypeVar("_Profile", "ClusterProfile", "ModelProfile")

OPERATIONS = ("allreduce", "alltoall", "allgather", "pull", "push")
"""The measured operations, across hosts and within one: collectives of workers, and a server's pull and push."""


@dataclass(frozen=True, slots=True)
class AlphaBeta:
    """The seconds of one operation among n members, fitted by least squares.

    They are

        latency + byte_s * bytes + on_link - overlap * min(latency, on_link)

    with latency = base_s + per_peer_s * (n - 1) and on_link = bytes / rate. `bytes` are those on the busiest host's
    link in its busier direction (within a host: a member's, and for a server those of all its members). `rate` is that
    link's in bytes per second, as in `HostProfile`, and is not part of the fit (within a host there is none).

    Attributes:
        base_s: seconds independent of members and bytes.
        per_peer_s: additional seconds for each further member; 0, and included in the base, if only one number of
            members was measured.
        byte_s: seconds per byte in addition to its time on the link: copies, checksums, waits between packets.
        overlap: the part of the latency that overlaps with the link's time, from 0 (they add up) to 1 (the longer
            counts). It is near 1 for a link that lets a burst through after being idle, as emulated ones do.
        residual: median over the samples of |fitted - measured| / measured.
        samples: how many measurements it was fitted to.
    """

    base_s: Finite
    per_peer_s: Finite
    byte_s: Finite
    residual: Amount
    samples: Count
    overlap: Finite = 0.0

    def seconds(self, members: int, link_bytes: float, rate_bytes_per_s: float | None) -> float:
        """Predicted seconds of the operation; 0 with one member."""
        if members < 2:
            return 0.0
        on_link = link_bytes / rate_bytes_per_s if rate_bytes_per_s else 0.0
        latency = self.base_s + self.per_peer_s * (members - 1)
        return latency + self.byte_s * link_bytes + on_link - self.overlap * min(latency, on_link)


@dataclass(frozen=True, slots=True)
class HostProfile:
    """One machine.

    Attributes:
        name: as in the resource file.
        cores: available to its processes.
        memory_bytes: of the machine.
        out_bytes_per_s: measured rate of its link, sending; 0 if there is no other host.
        in_bytes_per_s: the same for receiving.
    """

    name: Text
    cores: Count
    memory_bytes: Count
    out_bytes_per_s: Amount
    in_bytes_per_s: Amount

    def __post_init__(self) -> None:
        if any(0 < rate < 1 for rate in (self.out_bytes_per_s, self.in_bytes_per_s)):
            raise ValueError("The rate of a link must be 0, or at least a byte per second")


@dataclass(frozen=True, slots=True)
class SumTimings:
    """Sums among workers by each method (parallax/plans/sum_methods.py).

    Attributes:
        workers_by_host: of those that met.
        sizes_bytes: of the messages, rising.
        seconds: method -> seconds of a message of each size. What took much longer than another way was not measured
            of longer messages.
        line: fit of the fastest method of each size.
    """

    workers_by_host: tuple[Positive, ...]
    sizes_bytes: tuple[Positive, ...]
    seconds: Mapping[Method, tuple[Amount, ...]]
    line: AlphaBeta

    def __post_init__(self) -> None:
        sizes, lengths = self.sizes_bytes, [len(one) for one in self.seconds.values()]
        if len(sizes) < 2 or list(sizes) != sorted(set(sizes)):
            raise ValueError(f"Sums are measured of at least two sizes, rising, got {list(sizes)}")
        if max(lengths, default=0) != len(sizes) or min(lengths) < 1:
            raise ValueError(f"Of {len(sizes)} sizes some method has all, and each the first, got {lengths}")
        if any(not one > 0 for of_method in self.seconds.values() for one in of_method):
            raise ValueError("A sum takes more than 0 s")

    @property
    def rules(self) -> SumRules:
        """The fastest method of each size."""
        return SumRules(self.workers_by_host, fastest_rules(self.sizes_bytes, self.seconds))


@dataclass(frozen=True, slots=True)
class ClusterProfile:
    """The links of a cluster.

    Attributes:
        version: of this format.
        hosts: in the order of the resource file.
        across: operation -> fit, with one member on each host.
        within: operation -> fit, with all members on one host; an operation that was not measured is left out, as pull
            and push are with several hosts.
        shared_cores: the number of processes, one on each host, that can compute concurrently at full speed; None for
            all. Emulated hosts share their machine's cores, and a step's compute time grows with their number.
        sums: measurements of all-reduces by each method, of all workers, and of fewer where hosts have several.
        between_bytes_per_s: the rate of the slowest link between islands, where the resource file names these; the
            rates of hosts are then those within their islands, and all else is measured in the first.
    """

    version: int
    hosts: tuple[HostProfile, ...]
    across: Mapping[Text, AlphaBeta]
    within: Mapping[Text, AlphaBeta]
    shared_cores: Annotated[float, Meta(ge=1e-3, le=1e15)] | None = None
    sums: tuple[SumTimings, ...] = ()
    between_bytes_per_s: Annotated[float, Meta(ge=1, le=1e15)] | None = None

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the profile."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def to_json(self) -> str:
        """Indented JSON, keys in a fixed order."""
        fields = asdict(self)
        for name in ("sums", "between_bytes_per_s"):  # only where they were measured
            if not fields[name]:
                del fields[name]
        return json.dumps(fields, indent=1, sort_keys=True) + "\n"

    def sums_of(self, workers_by_host: Sequence[int]) -> SumTimings | None:
        """The timings for these numbers of workers per host; None if not measured."""
        counts = tuple(count for count in workers_by_host if count)
        return next((one for one in self.sums if one.workers_by_host == counts), None)


@dataclass(frozen=True, slots=True)
class TableProfile:
    """The lookups of a model's steps in one variable that is looked up by row.

    Attributes:
        name: of the variable.
        ids: mean number of ids that a worker looks up in a step.
        touched_rows: mean number of the distinct ones among them.
        joined_rows: (k, mean number of distinct rows that k workers touch together in a step), ascending in k, from k =
            1 to the number measured together: rows that the workers of a host merge, and that owners receive.
        busiest_share: the share of all requested rows that the most requested owner stores, times the number of owners;
            1 is balanced. For as many owners as the last k of `joined_rows`.
    """

    name: Text
    ids: Amount
    touched_rows: Amount
    joined_rows: tuple[tuple[Positive, Amount], ...]
    busiest_share: Amount


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """The profile of a model's steps.

    Attributes:
        version: of this format.
        graph: the `model_key` of the graph (spec.py).
        cluster: fingerprint of the cluster profile used; empty without one.
        steps: the number of measured batches of each worker.
        source: `sample batches` or `first steps`.
        tables: one for each variable looked up by row, sorted by name.
        compute_s: median seconds that a worker computes in a step, without any exchange; None if not measured.
        memory_bytes: peak memory of a worker in addition to the values of variables and slots; None if not measured.
        session_s: seconds of a step in addition to compute and exchanges (the session's own); None if not measured.
        overlap_s: of `compute_s`, the seconds in which gradients are already being sent; None if not measured, and then
            compute is assumed to hide nothing.
        one_core_s: median seconds that a worker with one core for all its threads computes in a step: its demand on
            shared cores; None if not measured.
        computing: how many workers computed concurrently, on the cores of the cluster, when `compute_s` was measured.
        op_seconds: op -> seconds in a step, for the ops that take most of it; empty if not measured.
    """

    version: int
    graph: Text
    cluster: Text
    steps: Count
    source: Text
    tables: tuple[TableProfile, ...]
    compute_s: Amount | None = None
    memory_bytes: Count | None = None
    session_s: Amount | None = None
    overlap_s: Amount | None = None
    one_core_s: Amount | None = None
    computing: Positive = 1
    op_seconds: Mapping[Text, Amount] = field(default_factory=dict)

    def table(self, name: str) -> TableProfile | None:
        """The profile of one variable; None if it was not measured."""
        return next((table for table in self.tables if table.name == name), None)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the profile."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def to_json(self) -> str:
        """Indented JSON, keys in a fixed order."""
        fields = asdict(self)
        if not self.op_seconds:
            del fields["op_seconds"]
        return json.dumps(fields, indent=1, sort_keys=True) + "\n"


def cluster_profile_from_json(text: str, name: str = "cluster profile") -> ClusterProfile:
    """Reads a cluster profile.

    Args:
        text: JSON as written by `ClusterProfile.to_json`.
        name: the file's name, for messages.

    Raises:
        PlanError: when it is no profile, or one of another version.
    """
    return _read(
        text, name, ClusterProfile, "cluster profile", "as `parallax calibrate` writes it", CLUSTER_PROFILE_VERSION
    )


def model_profile_from_json(text: str, name: str = "model profile") -> ModelProfile:
    """Reads a model profile; as `cluster_profile_from_json`.

    Raises:
        PlanError: when it is no profile, or one of another version.
    """
    profile = _read(text, name, ModelProfile, "model profile", "as it was written", MODEL_PROFILE_VERSION)
    names = [table.name for table in profile.tables]
    together = [[k for k, _ in table.joined_rows] for table in profile.tables]
    if names != sorted(set(names)) or any(not of or of != sorted(set(of)) or of != together[0] for of in together):
        raise PlanError(
            f"{shown(name)}: a model profile must have its tables sorted by name, all of them seen by the same "
            f"increasing numbers of workers, got {names!r:.60} and {together!r:.60}. Measure it again."
        )
    return profile


def _read(text: str, name: str, kind: type[_Profile], what: str, rule: str, version: int) -> _Profile:
    raw = read_json(text, PlanError, name, "a profile")
    if raw.get("version") != version:
        raise PlanError(
            f"{shown(name)}: the profile must have version {version}, got {raw.get('version')!r:.60}. Measure it "
            "again (a cluster with `parallax calibrate`)."
        )
    try:
        return checked_value(raw, kind)
    except ValueError as error:
        raise PlanError(f"{shown(name)}: a {what} must be {rule}: {error}. Measure it again.") from error
