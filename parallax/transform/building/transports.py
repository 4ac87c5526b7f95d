"""Transports from a worker to the owners of rows: to partitions in the workers, or to those on servers.

Both may begin with a hop among a group of workers, where each key goes to one member, which deduplicates the requests
of the others and requests rows from the owners once for all of them. The workers of one host form a group, so that only
the union of their rows leaves the host. Where every host has one worker, all workers form a group for tables on
servers: each server is reached through the worker on its host, its *front*, alone. Rows then cross between hosts in one
message for each pair of workers, not in requests of every worker to every server.

Half precision applies only to the hop that leaves hosts: to the owners, or to fronts. A worker rounds its local rows
like those of others, so that all workers read the same values.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import tensorflow as tf

from parallax.base.types import DType, Operation, Tensor
from parallax.cluster.team_names import WORKERS
from parallax.graph.ownership import Ownership
from parallax.plans.plan import ALLTOALL, PS
from parallax.transform.building.all_to_all import Hop, LookupIds, all_to_all, prepare_hop
from parallax.transform.building.wire import GRADIENTS, ROWS, Wire


@dataclass(frozen=True, slots=True)
class TableRows:
    """One table of an exchange.

    Attributes:
        name: its variable op.
        variable: the user's name.
        rows: of the full table.
        parts: its rows by partition, as handles or tensors: one here, where workers own them; all, on servers.
        dtype: of the elements.
        row_shape: of one row.
        devices: of the servers, for each partition; empty where workers own the rows.
    """

    name: str
    variable: str
    rows: int
    parts: tuple[Tensor, ...]
    dtype: DType
    row_shape: tuple[int, ...]
    devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MergeGroup:
    """Workers that merge their requests: each member requests some of the rows on behalf of all.

    Attributes:
        among: HOST for those of this worker's host, WORKERS for all.
        size: the number of members.
        requester_of_slot: for each slot of the pattern of owners, the member that requests its rows. For owners on
            servers, to which any member may send requests, the pattern may be another: keys are assigned modulo its
                length.
    """

    among: str
    size: int
    requester_of_slot: tuple[int, ...]

    def out(self, values: Tensor, wire: Wire, kind: str) -> Tensor:
        """Values as sent between members: in half precision, where that is enabled, between hosts only."""
        return wire.out(values, kind) if self.among == WORKERS else values


@dataclass(frozen=True, slots=True)
class Pushers:
    """The workers that request rows from servers, and send gradient rows to them.

    Attributes:
        partitions: those that this worker addresses.
        count: of the workers that address a partition: all, or its server's front alone.
    """

    partitions: tuple[int, ...]
    count: int


@dataclass(frozen=True, slots=True)
class RoutedKeys:
    """The route of a pull's keys, or of a push that has its own rows.

    Attributes:
        rows: `[u, width]`, in the order of the first hop's keys; None where none were returned.
        before: the hop within the group, and the number of keys from each worker; None without one.
        last: the hop to the owners.
        requested: where workers are owners: `[m]`, local row numbers that others requested from this one.
        requested_splits: `[W]`, the number that each of them requested.
        table_of_requested: `[m]`, the table of each; None when there is only one.
    """

    rows: Tensor
    before: tuple[Hop, Tensor] | None
    last: Hop
    requested: Tensor = None
    requested_splits: Tensor = None
    table_of_requested: Tensor = None


@dataclass(frozen=True, slots=True)
class Requests:
    """The counted properties of a run: keys by destination, and the destinations outside the host.

    Attributes:
        splits: `[n]`, the number of keys for each destination.
        remote: `[n]`, 1 for each destination on another host (on one host, in another process), else 0.
        destination_of_slot: for each slot of the pattern of owners, the destination of its keys.
    """

    splits: Tensor
    remote: list[int]
    destination_of_slot: tuple[int, ...]


class Transport(ABC):
    """The common base of transports to owners.

    Where there are several hosts and one has several workers, synchronous training has a hop within the host first,
    unless `local_aggregation` is off. Dense gradients skip this hop.

    Attributes:
        route: its name in the plan.
    """

    route: ClassVar[str]

    def __init__(self, ownership: Ownership, meeting: MergeGroup | None, wire: Wire) -> None:
        self.ownership = ownership
        self.meeting = meeting
        self.wire = wire

    @property
    def slots(self) -> int:
        """P, the modulus by which keys are owned."""
        return self.ownership.slots

    def first_hop(self, requested: list[LookupIds], key_type: DType) -> Hop:
        """Deduplicates the keys of all lookups and orders them by their first destination."""
        if self.meeting is not None:
            return prepare_hop(requested, self.meeting.requester_of_slot, self.meeting.size, key_type)
        return self._to_owners(requested, key_type)

    def pull(self, first: Hop, tables: list[TableRows], bases: Sequence[int]) -> RoutedKeys:
        """Pulls the rows of the first hop's keys."""
        routed = self.announce(first, bases)
        routed = replace(routed, rows=self._pull_rows(routed, tables, bases))
        if self.meeting is None or routed.before is None:
            return routed
        hop_rows = tf.gather(routed.rows, routed.last.positions)
        hop_rows = self.meeting.out(hop_rows, self.wire, ROWS)
        rows, _ = all_to_all(hop_rows, routed.before[1], self.meeting.among, first.splits)
        return replace(routed, rows=tf.cast(rows, routed.rows.dtype))

    def announce(self, first: Hop, bases: Sequence[int]) -> RoutedKeys:
        """Sends the owners the first hop's keys; no rows are returned.

        A push of rows of several batches thus takes one additional round.
        """
        if self.meeting is None:
            return self._send_keys(first, bases)
        requested, counts = all_to_all(first.keys, first.splits, self.meeting.among)
        last = self._to_owners([LookupIds(requested)], requested.dtype)
        return replace(self._send_keys(last, bases), before=(first, counts))

    def push(self, routed: RoutedKeys, rows: Tensor) -> Tensor:
        """Sends gradient rows `[u, width]` of the first hop's keys over it; returns sums by `routed.last`'s keys."""
        if routed.before is None or self.meeting is None:
            return rows
        first, counts = routed.before
        sent = self.meeting.out(rows, self.wire, GRADIENTS)
        received = tf.cast(all_to_all(sent, first.splits, self.meeting.among, counts)[0], rows.dtype)
        return tf.math.unsorted_segment_sum(received, routed.last.positions, tf.size(routed.last.keys))

    @abstractmethod
    def send_gradient_rows(
        self,
        routed: RoutedKeys,
        rows: Tensor,
        bases: Sequence[int],
        tables: Sequence[int],
        count: Callable[[], Operation],
    ) -> list[tuple[Tensor, Tensor]]:
        """Sends gradient rows, in the order of `routed.last`, to their owners.

        Args:
            routed: their route.
            rows: `[u, width]`.
            bases: the row number at which each table begins, and at which the last one ends.
            tables: the tables of the exchange that have rows.
            count: counts the run, wherever rows are sent.

        Returns:
            Rows `[m, width]` and their local row numbers `[m]`, for each place where owners receive them. For workers
            as owners: the rows that arrived here, for each of `tables`; a row arrives at most once from each worker (or
            host). For servers: the rows of each partition.
        """

    @abstractmethod
    def requests(self, first: Hop, last: Hop, away: list[int]) -> Requests:
        """The counted properties of a run, with `remote` marking workers on other hosts."""

    @abstractmethod
    def push_id_bytes(self, id_bytes: int) -> int:
        """Bytes of a row number in a push, where a key of the exchange has `id_bytes`; 0 if the push sends none."""

    def _to_owners(self, requested: list[LookupIds], key_type: DType) -> Hop:
        return prepare_hop(requested, self.ownership.pattern, self.ownership.holders, key_type, to_owners=True)

    @abstractmethod
    def _send_keys(self, last: Hop, bases: Sequence[int]) -> RoutedKeys:
        """Sends owners the last hop's keys, where they are not part of every request."""

    @abstractmethod
    def _pull_rows(self, routed: RoutedKeys, tables: list[TableRows], bases: Sequence[int]) -> Tensor:
        """The rows of the last hop's keys `[m, width]`."""


class WorkerTransport(Transport):
    """The transport to owners that are workers, including this one.

    A pull is two all-to-alls: local row numbers to owners, rows back. A push is one, without row numbers.
    """

    route = ALLTOALL

    def __init__(self, ownership: Ownership, meeting: MergeGroup | None, wire: Wire, rank: int) -> None:
        super().__init__(ownership, meeting, wire)
        self.share = ownership.shares[rank]

    def _send_keys(self, last: Hop, bases: Sequence[int]) -> RoutedKeys:
        requested, counts = all_to_all(last.local, last.splits)
        return RoutedKeys(None, None, last, requested, counts, table_of(requested, self._find_local_bases(bases)))

    def _pull_rows(self, routed: RoutedKeys, tables: list[TableRows], bases: Sequence[int]) -> Tensor:
        local_rows = _local_rows(tables, routed.requested, routed.table_of_requested, self._find_local_bases(bases))
        rows, _ = all_to_all(self.wire.out(local_rows, ROWS), routed.requested_splits, arriving=routed.last.splits)
        return tf.cast(rows, tables[0].dtype)

    def _find_local_bases(self, bases: Sequence[int]) -> list[int]:
        """The local row number at which each table begins, and at which the last one ends."""
        return [base * self.share for base in bases]

    def send_gradient_rows(
        self,
        routed: RoutedKeys,
        rows: Tensor,
        bases: Sequence[int],
        tables: Sequence[int],
        count: Callable[[], Operation],
    ) -> list[tuple[Tensor, Tensor]]:
        """See `Transport.send_gradient_rows`."""
        arrived = self._receive_rows(routed, rows, bases)
        with tf.control_dependencies([count()]):
            return [(tf.identity(arrived[table][0]), tf.identity(arrived[table][1])) for table in tables]

    def _receive_rows(self, routed: RoutedKeys, rows: Tensor, bases: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        """The rows that arrive at this worker, for each table of the exchange."""
        sent = self.wire.out(rows, GRADIENTS)
        received, _ = all_to_all(sent, routed.last.splits, arriving=routed.requested_splits)
        received = tf.cast(received, rows.dtype)
        tables = len(bases) - 1
        if tables == 1:
            return [(received, routed.requested)]
        mine = tf.constant(self._find_local_bases(bases[:-1]), routed.requested.dtype)
        local = routed.requested - tf.gather(mine, routed.table_of_requested)
        received_by_table = tf.dynamic_partition(received, routed.table_of_requested, tables)
        local_by_table = tf.dynamic_partition(local, routed.table_of_requested, tables)
        return list(zip(received_by_table, local_by_table, strict=True))

    def requests(self, first: Hop, last: Hop, away: list[int]) -> Requests:
        """See `Transport.requests`."""
        return Requests(last.splits, away, self.ownership.pattern)

    def push_id_bytes(self, id_bytes: int) -> int:
        """See `Transport.push_id_bytes`: a push follows the route of its keys."""
        return id_bytes


class ServerTransport(Transport):
    """The transport to owners that are servers: one request to each partition that this worker addresses.

    A pull is one gather on each partition's server. A push sends row numbers along with the gradient rows. Within a
    host ids are dealt out by `id % workers of the host`.
    """

    route = PS

    def __init__(self, ownership: Ownership, meeting: MergeGroup | None, wire: Wire, pushers: Pushers) -> None:
        super().__init__(ownership, meeting, wire)
        self.pushers = pushers

    @property
    def proxies(self) -> tuple[int, ...]:
        """For each slot of the pattern the worker that addresses its server for all; empty where every worker does."""
        return self.meeting.requester_of_slot if self.meeting is not None and self.meeting.among == WORKERS else ()

    def _send_keys(self, last: Hop, bases: Sequence[int]) -> RoutedKeys:
        return RoutedKeys(None, None, last)

    def _pull_rows(self, routed: RoutedKeys, tables: list[TableRows], bases: Sequence[int]) -> Tensor:
        (table,) = tables
        local = self._by_partition(routed.last, routed.last.local)
        pulled = []
        for number in self.pushers.partitions:
            with tf.device(table.devices[number]):
                rows = _gather(table, table.parts[number], local[number])
                pulled.append(rows if self.proxies else self.wire.round_rows(rows))
        rows = tf.concat(pulled, 0) if pulled else tf.zeros([0, math.prod(table.row_shape)], table.dtype)
        return tf.cast(rows, table.dtype)

    def send_gradient_rows(
        self,
        routed: RoutedKeys,
        rows: Tensor,
        bases: Sequence[int],
        tables: Sequence[int],
        count: Callable[[], Operation],
    ) -> list[tuple[Tensor, Tensor]]:
        """See `Transport.send_gradient_rows`; between a front and its server rows are not rounded."""
        last = routed.last
        with tf.control_dependencies([count()]):
            sent = tf.identity(rows)
            sent = sent if self.proxies else self.wire.out(sent, GRADIENTS)
        return list(zip(self._by_partition(last, sent), self._by_partition(last, last.local), strict=True))

    def requests(self, first: Hop, last: Hop, away: list[int]) -> Requests:
        """See `Transport.requests`; requests of fronts to their servers stay on their hosts."""
        if self.proxies:
            return Requests(first.splits, away, self.proxies)
        return Requests(last.splits, [1] * self.ownership.holders, self.ownership.pattern)

    def push_id_bytes(self, id_bytes: int) -> int:
        """See `Transport.push_id_bytes`; servers receive the row numbers, in 8 bytes each."""
        return id_bytes if self.proxies else 8

    def _by_partition(self, last: Hop, rows: Tensor) -> list[Tensor]:
        """Splits rows in the order of the last hop into those of each partition."""
        partitions = self.ownership.holders
        return list(tf.split(rows, last.splits, num=partitions)) if partitions > 1 else [rows]


def table_of(keys: Tensor, bases: Sequence[int]) -> Tensor:
    """The table of each local row number; None when there is one table."""
    if len(bases) == 2:
        return None
    return tf.searchsorted(tf.constant(bases[1:-1], keys.dtype), keys, side="right")


def _local_rows(tables: list[TableRows], requested: Tensor, table_of_requested: Tensor, bases: Sequence[int]) -> Tensor:
    if table_of_requested is None:
        return _gather(tables[0], tables[0].parts[0], requested)
    count = len(tables)
    numbers = tf.dynamic_partition(requested, table_of_requested, count)
    places = tf.dynamic_partition(tf.range(tf.size(requested)), table_of_requested, count)
    rows = [
        _gather(t, t.parts[0], n - tf.constant(b, n.dtype)) for t, n, b in zip(tables, numbers, bases, strict=False)
    ]
    return tf.dynamic_stitch(places, rows)


def _gather(table: TableRows, rows: Tensor, local: Tensor) -> Tensor:
    if rows.dtype == tf.resource:
        gathered = tf.raw_ops.ResourceGather(resource=rows, indices=local, dtype=table.dtype)
    else:
        gathered = tf.raw_ops.GatherV2(params=rows, indices=local, axis=0)
    return tf.reshape(gathered, [-1, math.prod(table.row_shape)])
