"""Prices one variable's route in seconds, from measured lines: bytes on every link by phase, and rounds.

W workers, u touched rows, width d, e bytes an element, i bytes an id, w bytes the variable. A phase of the step costs
what its busiest end (a link's direction) carries, plus the rounds of the process that waits longest, less the overlap
of the two (step_time.py). Both add up over the variables, so this module computes each variable's contribution. An
operation's line (`parallax.cluster.profiles.AlphaBeta`) yields

    base_s + per_peer_s * (members - 1)    a round, paid once by all who share it: a *charge*
    byte_s * bytes + bytes / rate          of an end: a *load*

The fraction `overlap` of a round, and of time on a link, is hidden where the other is longer. So both are stored twice:
FULL, and the remainder LEFT, which is (1 - overlap) of it.

Simplified: lines were fitted with one member a host, and a worker's round to all others is assumed to cost a member's,
however many workers share a host. Exchanges of rows are all at one level: lookups whose ids come from another lookup's
rows wait once more. All all-reduced gradients are ready at once and fused, and all allgathers share one cycle of
Horovod's (Sergeev and Del Balso 2018), whose negotiation dominates a measured round: each adds only its bytes. The time
to round to half precision on the wire, and back, is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parallax.analysis.routes.cost import id_bytes, pushed_row_bytes, reduced_bytes, sent_row_bytes
from parallax.analysis.routes.count_touched import TouchedRowCount
from parallax.analysis.timing.topology import OUT, Topology
from parallax.cluster.profiles import AlphaBeta
from parallax.graph.spec import VariableClass, VariableSpec
from parallax.plans.plan import ALLGATHER, ALLREDUCE, ALLTOALL, PS
from parallax.plans.sum_methods import HOST_FIRST, MESSAGE_BYTES, method_for, sent_out_of_host

PHASES = (
    "merge ids within hosts",
    "pull: ids to owners",
    "pull: rows back",
    "merge gradients within hosts",
    "gradients",
    "new values from servers",
)
MERGE_IDS, PULL_IDS, PULL_ROWS, MERGE_GRADIENTS, GRADIENTS, NEW_VALUES = range(len(PHASES))
BEFORE, AFTER = (MERGE_IDS, PULL_IDS, PULL_ROWS), (MERGE_GRADIENTS, GRADIENTS)
"""Phases before the workers compute, and after; the last one follows the update."""

ROWS, REDUCING, GATHERING, ASKING = range(4)
"""The groups that wait in a phase: exchanges of rows, each with its own thread; all-reduces; Horovod's
allgathers; a worker that sends requests to servers. The servers follow, one each. They wait concurrently.
"""

FULL, LEFT = range(2)
"""For rounds and for time on links: all of it, and the remainder where the other is longer."""

Floats = NDArray[np.float64]
Charge = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RouteOption:
    """A route for one variable, with its servers if it has any.

    Attributes:
        route: its name.
        servers: for `ps`, for each part the server of each partition.
        extra_s: `[phases, ends]`, seconds of its bytes in addition to their time on links.
        link: `[FULL and LEFT, phases, ends]`, seconds of its bytes on links.
        waits: `[FULL and LEFT, phases, who]`, seconds of rounds that it does not share.
        charges: the rounds that it shares.
        link_bytes: `[phases, ends]`.
        memory: `[process kinds]`, bytes; see parallax/analysis/routes/memory.py.
    """

    route: str
    servers: tuple[tuple[int, ...], ...]
    extra_s: Floats
    link: Floats
    waits: Floats
    charges: tuple[Charge, ...]
    link_bytes: Floats
    memory: Floats


class Pricing:
    """Prices routes on a topology. Charges are recorded when first used, `[FULL and LEFT, phases, who]` seconds.

    Args:
        topology: the links.
        wire: the element type in which float32 travels, if another.
        batches: of an update: rows are pulled for each of them, gradients are sent once.
    """

    def __init__(self, topology: Topology, wire: str | None = None, batches: int = 1) -> None:
        self.topology = topology
        self.wire = wire
        self.batches = batches
        self.who = ASKING + 1 + topology.servers
        self.charges: dict[Charge, Floats] = {}
        ends = topology.ends
        self.away = np.array([0.0 if u.rates[e] is None else 1.0 / (u.rates[e] or 1.0) for u, e in ends])
        self.out = np.array([e == OUT for _, e in ends])
        self.share = np.array([u.share for u, _ in ends])
        self.top_share = np.array([u.top_share for u, _ in ends])
        self.num_workers = np.array([u.workers for u, _ in ends])

    def price(
        self,
        variable: VariableSpec,
        route: str,
        touched: TouchedRowCount | None,
        memory: Floats,
        servers: tuple[tuple[int, ...], ...] = (),
    ) -> RouteOption:
        """The cost that a variable adds to each phase on a route.

        Args:
            variable: the variable.
            route: ALLREDUCE, ALLGATHER, ALLTOALL or PS.
            touched: its rows; None only where its gradient is dense.
            memory: its memory on this route.
            servers: for PS, for each part the server of each partition.
        """
        ends, who = (len(PHASES), len(self.away)), (len(PHASES), self.who)
        adding = _Adding(np.zeros(ends), np.zeros((2, *ends)), np.zeros(ends), np.zeros((2, *who)), [])
        by_route: dict[str, Callable[[], None]] = {
            ALLREDUCE: lambda: self._allreduce(adding, variable),
            ALLGATHER: lambda: self._allgather(adding, variable, _require_touched(touched)),
            ALLTOALL: lambda: self._alltoall(adding, variable, _require_touched(touched)),
            PS: lambda: self._servers(adding, variable, touched, servers),
        }
        if self.topology.workers > 1 or route == PS:
            by_route[route]()
        charges = tuple(dict.fromkeys(adding.charges))
        return RouteOption(
            route, servers, adding.extra_s, adding.link, adding.waits, charges, adding.link_bytes, memory
        )

    def _allreduce(self, to: _Adding, variable: VariableSpec) -> None:
        """Each host sends and receives what the method of the message sends out of a host; within a host 2(W-1)/W w.

        A sparse gradient is densified, with an additional column. bfloat16 travels as float32. Messages are assumed to
        be full, as small ones are fused. Workers of a host sum in its memory, so the rounds are those of the hosts.
        """
        workers, hosts, line = self.topology.workers, self.topology.layout.hosts, self.topology.lines["allreduce"]
        dense_bytes = reduced_bytes(variable, self.wire)
        method = method_for(self.topology.sum_rules, max(dense_bytes, MESSAGE_BYTES))
        part = sent_out_of_host(hosts, method) or 2 * (workers - 1) / workers
        if method in HOST_FIRST:
            workers = sum(count > 0 for count in hosts) if len(hosts) > 1 else workers
        self._add_bytes(to, GRADIENTS, np.where(self.num_workers > 0, part * dense_bytes, 0.0), line)
        self._charge(to, (ALLREDUCE,), line, [(GRADIENTS, REDUCING, line.seconds(workers, 0, None))])

    def _allgather(self, to: _Adding, variable: VariableSpec, touched: TouchedRowCount) -> None:
        """Coalesced rows and ids of every worker pass every host around a ring: (W-1) u (i + de), in each direction.

        Rows that must not be coalesced are as many as the ids.
        """
        workers, line = self.topology.workers, self.topology.lines["allgather"]
        rows = self.batches * touched.ids if variable.unmerged else touched.of(self.batches)
        sent = (workers - 1) * rows * (id_bytes(variable, workers) + pushed_row_bytes(variable, self.wire))
        self._add_bytes(to, GRADIENTS, np.where(self.num_workers > 0, sent, 0.0), line)
        self._charge(to, (ALLGATHER,), line, [(GRADIENTS, GATHERING, line.seconds(workers, 0, None))])

    def _alltoall(self, to: _Adding, variable: VariableSpec, touched: TouchedRowCount) -> None:
        """Ids to owners, rows back, gradient rows to owners.

        A host requests the union of its workers' rows where they merge requests. Rows that it owns itself stay. The
        busiest owner gets `busiest` times its share; it may be on any host. Exchanges of different width or type are in
        flight concurrently: they wait for the others together, but each handles its own messages
        (parallax/native/exchange.cc).
        """
        group = (ALLTOALL, variable.dtype, str(variable.width))
        self._between_workers(to, variable, touched, self.share, self.top_share, group)
        self._merge(to, variable, touched, group)

    def _between_workers(
        self,
        to: _Adding,
        variable: VariableSpec,
        touched: TouchedRowCount,
        share: Floats,
        top_share: Floats,
        group: Charge,
    ) -> None:
        """All-to-alls of ids, rows and gradient rows, from each end's owned rows and those of its largest owner."""
        workers, line = self.topology.workers, self.topology.lines["alltoall"]
        of_id, of_row = id_bytes(variable, workers), sent_row_bytes(variable, self.wire)
        away, requested = self._crossing(self._pulls(touched), touched, share, top_share)
        self._add_bytes(to, PULL_IDS, np.where(self.out, away, requested) * of_id, line)
        self._add_bytes(to, PULL_ROWS, np.where(self.out, requested, away) * of_row, line)
        named = of_id if self.batches > 1 else 0  # the owner remembers one batch's rows
        away, requested = self._crossing(self._pushes(touched), touched, share, top_share)
        self._add_bytes(
            to, GRADIENTS, np.where(self.out, away, requested) * (named + pushed_row_bytes(variable, self.wire)), line
        )
        rounds = ((PULL_IDS, self.batches), (PULL_ROWS, self.batches), (GRADIENTS, 2 if named else 1))
        peers_s = line.seconds(workers, 0, None) - line.base_s
        self._charge(to, (ALLTOALL,), line, [(phase, ROWS, times * line.base_s) for phase, times in rounds])
        self._charge(to, group, line, [(phase, ROWS, times * peers_s) for phase, times in rounds])

    def _merge(self, to: _Adding, variable: VariableSpec, touched: TouchedRowCount, group: Charge) -> None:
        """The hops within a host: ids and rows in the pull, gradient rows in the push, among its workers.

        Of the m workers of the host with the most, each sends (m-1)/m of its touched rows to the others, in full
        precision.
        """
        members, line = self.topology.merging, self.topology.within
        if members < 2 or line is None:
            return
        share, of_id = (members - 1) / members, id_bytes(variable, self.topology.workers)
        pulled, pushed = self.batches * touched.one * share, touched.of(self.batches) * share
        named = of_id if self.batches > 1 else 0
        to.extra_s[MERGE_IDS] += line.byte_s * pulled * (of_id + _row_bytes(variable))
        to.extra_s[MERGE_GRADIENTS] += line.byte_s * pushed * (named + variable.sums * _row_bytes(variable))
        peers_s = line.seconds(members, 0, None) - line.base_s
        hops = ((MERGE_IDS, 2 * self.batches), (MERGE_GRADIENTS, 2 if named else 1))
        self._charge(to, ("within",), line, [(phase, ROWS, rounds * line.base_s) for phase, rounds in hops])
        self._charge(to, ("within", *group), line, [(phase, ROWS, rounds * peers_s) for phase, rounds in hops])

    def _servers(
        self, to: _Adding, variable: VariableSpec, touched: TouchedRowCount | None, servers: tuple[tuple[int, ...], ...]
    ) -> None:
        """Requests to each partition's server: rows and gradients by row, or gradient and new value in full.

        The lines are of n workers that each send to n servers, a push with worker 0's signal that the update is done.
        Tables share no request, so each adds the cost of further ones (`per_peer_s`): to a worker for its partitions,
        to a server for the workers, for each partition that it stores. Of a host's bytes those to its own server stay.

        With fronts rows go between workers, whose shares are those of their hosts' servers, and a front sends requests
        to its own partitions alone. Traffic between it and its server crosses no link, and is assumed to cost a
        request.
        """
        pull, push = self.topology.lines["pull"], self.topology.lines["push"]
        parts = [server for of_part in servers for server in of_part]
        number = self.topology.servers
        stored_bytes = np.zeros(number)
        for of_part, part in zip(servers, variable.parts, strict=True):
            np.add.at(stored_bytes, list(of_part), part.rows / max(variable.rows, 1) / len(of_part))
        here = np.array([sum(stored_bytes[s] for s in unit.servers) for unit, _ in self.topology.ends])
        top = np.array([max((stored_bytes[s] for s in unit.servers), default=0.0) for unit, _ in self.topology.ends])
        requests = np.bincount(parts, minlength=number)
        by_row = variable.cls == VariableClass.SPARSE
        phases = [(GRADIENTS, push, 1), (PULL_ROWS, pull, self.batches) if by_row else (NEW_VALUES, pull, 1)]
        by_fronts = by_row and self.topology.has_fronts
        asks_of, asked_by = (requests.max(), 1) if by_fronts else (len(parts), self.topology.workers)
        for phase, line, times in phases:
            asking = np.append(asks_of - 1, (asked_by - 1) * requests)
            to.waits[:, phase, ASKING:] += _both(line) * times * line.per_peer_s * asking
        requesters = range(ASKING, self.who)
        for phase, line, times in phases:
            self._charge(to, (PS, PHASES[phase]), line, [(phase, who, times * line.base_s) for who in requesters])
        if not by_row:
            workers, whole = self.topology.workers, variable.value_bytes
            sent_bytes = self.num_workers * whole * (1 - here)
            received_bytes = (workers - self.num_workers) * whole * here
            self._add_bytes(to, GRADIENTS, np.where(self.out, sent_bytes, received_bytes), push)
            self._add_bytes(to, NEW_VALUES, np.where(self.out, received_bytes, sent_bytes), pull)
            return
        rows = _require_touched(touched)
        if by_fronts:
            self._between_workers(to, variable, rows, here, top, (PS, variable.name))
            return
        of_id, of_row = id_bytes(variable, self.topology.workers), sent_row_bytes(variable, self.wire)
        away, requested = self._crossing(self._pulls(rows), rows, here, top)
        self._add_bytes(
            to,
            PULL_ROWS,
            np.where(self.out, away * of_id + requested * of_row, requested * of_id + away * of_row),
            pull,
        )
        away, requested = self._crossing(self._pushes(rows), rows, here, top)
        self._add_bytes(
            to, GRADIENTS, np.where(self.out, away, requested) * (8 + pushed_row_bytes(variable, self.wire)), push
        )
        self._merge(to, variable, rows, (PS, variable.name))

    def _pulls(self, touched: TouchedRowCount) -> Callable[[int], float]:
        """The number of rows that a number of workers on a host request in a step."""
        if self.topology.merging > 1:
            return lambda workers: self.batches * touched.of(workers)
        return lambda workers: self.batches * workers * touched.one

    def _pushes(self, touched: TouchedRowCount) -> Callable[[int], float]:
        """The number of rows for which a number of workers on a host have gradients in a step."""
        if self.topology.merging > 1:
            return lambda workers: touched.of(self.batches * workers)
        return lambda workers: workers * touched.of(self.batches)

    def _crossing(
        self, of: Callable[[int], float], touched: TouchedRowCount, share: Floats, top_share: Floats
    ) -> tuple[Floats, Floats]:
        """The rows of others that each end's unit requests, and rows of its own that others request."""
        asks = np.array([of(unit.workers) for unit, _ in self.topology.ends])
        all_asks = sum(count * of(workers) for workers, count in self.topology.units_by_workers)
        requested = (all_asks - asks) * np.minimum(1.0, share + (touched.busiest - 1) * top_share)
        return asks * (1 - share), requested

    def _add_bytes(self, to: _Adding, phase: int, end_bytes: Floats, line: AlphaBeta) -> None:
        to.link_bytes[phase] += end_bytes
        to.extra_s[phase] += end_bytes * line.byte_s
        to.link[:, phase] += _both(line) * end_bytes * self.away

    def _charge(self, to: _Adding, key: Charge, line: AlphaBeta, seconds: list[tuple[int, int, float]]) -> None:
        to.charges.append(key)
        if key not in self.charges:
            self.charges[key] = np.zeros((2, len(PHASES), self.who))
            for phase, who, round_s in seconds:
                self.charges[key][:, phase, who] += _both(line)[:, 0] * round_s


@dataclass(frozen=True, slots=True)
class _Adding:
    """An option under construction."""

    extra_s: Floats
    link: Floats
    link_bytes: Floats
    waits: Floats
    charges: list[Charge]


def _both(line: AlphaBeta) -> Floats:
    """`[FULL and LEFT, 1]`, the parts of its rounds and of its time on links."""
    return np.array([[1.0], [1.0 - line.overlap]])


def _row_bytes(variable: VariableSpec) -> int:
    return variable.width * variable.dtype_bytes


def _require_touched(touched: TouchedRowCount | None) -> TouchedRowCount:
    if touched is None:
        raise ValueError("A route by row is priced only where touched rows are known.")
    return touched
