"""Meetings of a job's islands: the centre of dense variables, the means of state, and the means of touched rows.

The leader of an island is its first worker. Leaders all-reduce dense variables, one message for each element type, and
send the result to the workers of their islands. Of tables, each worker meets those that own the same rows in the other
islands. Between two meetings no message leaves an island.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import tensorflow as tf

from parallax.analysis.graph_to_plan import AnalysedGraph
from parallax.base.errors import GuardError, SessionError
from parallax.base.types import Array, Comm, Operation, Session, Tensor
from parallax.cluster.team_names import REPLICA
from parallax.plans.island_plan import IslandPlan
from parallax.plans.plan import Plan
from parallax.report.logger import log
from parallax.report.text import bytes_text, pluralize
from parallax.runtime.checkpoint.rows.access_to_rows import build_access
from parallax.runtime.checkpoint.rows.row_ops import RowOps, WholeAccess
from parallax.runtime.checkpoint.rows.row_places import CentreValue, Places
from parallax.runtime.checkpoint.rows.stage_rows import RowsOfCentre, RowsOfStage
from parallax.runtime.checkpoint.rows.variable_rows import ReplicatedRows, ReplicatedValue, ShardedRows
from parallax.runtime.islands.averaged_variables import AveragedVariables, find_averaged_variables, wire_type
from parallax.runtime.islands.centre import Centre, FlatValues, Packing, averaging
from parallax.runtime.worker.barrier import barrier
from parallax.runtime.worker.ranks import ProcessGroup
from parallax.runtime.worker.session.run_context import TrainingRuns, WorkerContext
from parallax.transform.passes.touched_rows import RowMemory
from parallax.transform.pipeline import WorkerGraph

_PIECE_ELEMENTS = 1 << 26  # MPI counts to 2**31 only


@dataclass(frozen=True, slots=True)
class _MarkedTable:
    """The rows of a table that this worker owns, and the record of those that were touched.

    Attributes:
        rows: reads and writes them.
        marks: the tensor of a bool for each row; None where all count as touched.
        clear: the op that resets it.
    """

    rows: ShardedRows[RowOps]
    marks: Tensor | None
    clear: Operation | None


@dataclass(eq=False)
class IslandMeetings:
    """The meetings of one worker.

    Attributes:
        terms: how islands meet.
        members: the job.
        worker: of the session.
        averaged: the variables.
        checks: whether leaders compare their centres.
        updates: the number of updates so far.
        settle: waits until no run of this worker is in flight.
    """

    terms: IslandPlan
    members: ProcessGroup
    worker: WorkerContext
    averaged: AveragedVariables
    checks: bool = True
    updates: int = 0
    settle: Callable[[], None] = lambda: None
    _met: int = 0  # the updates at the last meeting
    _number: int = 0
    _seconds: float = 0.0
    _sent_bytes: int = 0
    _told: int = 0  # the meetings that a message has counted
    _tables: list[_MarkedTable] = field(default_factory=list)
    _access: list[WholeAccess] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._workers = self.members.workers.Dup()
        self._team, self._across = self.members.team.Dup(), self.members.teams.find(REPLICA).Dup()
        self._is_leader = self.members.replica == 0
        self.members.at_end.append(self.finish)
        both = (self.averaged.dense, self.averaged.state)
        self._packings = [Packing(tuple((one.shape or (), wire_type(one)) for one in some)) for some in both]
        terms = (self.terms, averaging(self.terms))
        self._centres = [Centre(*of) if self._is_leader else None for of in zip(terms, self._packings, strict=True)]

    def centres(self) -> dict[str, CentreValue]:
        """The centre of each dense variable, and its momentum if there is one; without arrays on other workers."""
        found = {}
        for some, packing, centre in zip(
            (self.averaged.dense, self.averaged.state), self._packings, self._centres, strict=True
        ):
            values = packing.views(centre.values) if centre is not None else [None] * len(some)
            momentum = packing.views(centre.momentum) if centre is not None and centre.momentum else [None] * len(some)
            for one, value, moved in zip(some, values, momentum, strict=True):
                found[one.op] = CentreValue(value, moved)
        return found

    def open(self, places: Places, touched: RowMemory) -> None:
        """Adds the ops that read and write the variables to the default graph, a worker's."""
        every = {one.op: one for one in (*self.averaged.dense, *self.averaged.state, *self.averaged.tables)}
        found = build_access(tuple(every.values()), places, self._workers)
        held = {one.stored.op: one.local_rows for one in found if isinstance(one, RowsOfStage | RowsOfCentre)}
        for one in (*self.averaged.dense, *self.averaged.state):
            own = held[one.op]
            assert isinstance(own, ReplicatedRows | ReplicatedValue), "each worker has all of a dense variable"
            self._access.append(own.access)
        marks = {op: table for table in touched.tables for op in table.variables}
        imported = tf.compat.v1.get_default_graph()
        for one in self.averaged.tables:
            own, table = held[one.op], marks.get(one.op)
            assert isinstance(own, ShardedRows), "each worker has rows of a table"
            if table is None:
                self._tables.append(_MarkedTable(own, None, None))
                continue
            handle = imported.get_tensor_by_name(f"{table.marks}:0")
            value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.bool)
            self._tables.append(_MarkedTable(own, value, imported.get_operation_by_name(table.clear)))

    def begin(self, session: Session) -> None:
        """Sets all islands and the centre to the initial values of the first island; every worker must call it."""
        packed = self._read(session) if self._is_leader else [one.zeros() for one in self._packings]
        for centre, own in zip(self._centres, packed, strict=True):
            for dtype in own:
                if centre is not None:
                    self._in_pieces(own[dtype], partial(self._across.Bcast, root=0), self._across)
                    centre.values[dtype][:] = own[dtype]
        self._spread(packed, session)

    def count_update(self) -> bool:
        """Counts an update of this worker, after which islands meet if it is time; returns whether they did."""
        self.updates += 1
        if self.updates - self._met == self.terms.every:
            self.meet()
        return self._met == self.updates

    def meet(self) -> None:
        """Runs a meeting, unless there was one after this update; every worker must call it after the same update.

        Raises:
            SessionError: on all workers, when they have made different numbers of updates.
            GuardError: on all workers, when leaders have different centres.
        """
        if self._met == self.updates:
            return
        began_s = time.monotonic()
        what = f"the meeting of islands after update {self.updates}"
        with self.worker.watch.run(what, f"meeting, {self.updates}"):
            self.settle()
            self._check_one_update()
            session = self.worker.raw
            packed = self._read(session) if self._is_leader else [one.zeros() for one in self._packings]
            for centre, own in zip(self._centres, packed, strict=True):
                if centre is not None:
                    contributions = centre.contribute(own)
                    for dtype, values in contributions.items():
                        self._total(values, self.terms.travels_as(dtype))
                    centre.take(own, contributions)
            self._compare()
            self._spread(packed, session)
            for table in self._tables:
                self._average_rows(table, session)
            cleared = list(dict.fromkeys(table.clear for table in self._tables if table.clear is not None))
            if cleared:
                session.run(cleared)
        self._met = self.updates
        self._number, self._seconds = self._number + 1, self._seconds + time.monotonic() - began_s

    def finish(self) -> None:
        """Logs what meetings have taken, on worker 0, unless there was none since the last call."""
        if self._number > self._told and self.members.rank == 0:
            log.info(
                f"Islands: {pluralize(self._number, 'meeting')} took {self._seconds:.2g} s, in which this worker sent "
                f"{bytes_text(self._sent_bytes)} to other islands."
            )
        self._told = self._number

    def _check_one_update(self) -> None:
        """Requires all workers to have made equally many updates."""
        barrier(self._workers)
        found = self._workers.allgather(self.updates)
        if len(set(found)) > 1:
            size = self.members.replicas
            by_island = ", ".join(f"island {number}: {found[number * size]}" for number in range(self.terms.count))
            raise SessionError(
                f"All islands must make equally many updates, but have made {by_island}. Give each island as many "
                "batches, or end all loops after the same step."
            )

    def _read(self, session: Session) -> list[FlatValues]:
        """This worker's values of dense variables and of state."""
        values = session.run([one.value for one in self._access])
        number = len(self.averaged.dense)
        return [one.pack(own) for one, own in zip(self._packings, (values[:number], values[number:]), strict=True)]

    def _spread(self, packed: Sequence[FlatValues], session: Session) -> None:
        """Sends the leader's values to the workers of its island, which write them."""
        values: list[Array] = []
        for packing, own in zip(self._packings, packed, strict=True):
            for flat in own.values():
                self._in_pieces(flat, partial(self._team.Bcast, root=0), self._team)
            values += packing.views(own)
        entries = (*self.averaged.dense, *self.averaged.state)
        fed = {
            access.new_value: value.astype(tf.as_dtype(one.dtype).as_numpy_dtype, copy=False)
            for access, value, one in zip(self._access, values, entries, strict=True)
        }
        session.run([access.update for access in self._access], fed)

    def _total(self, array: Array, travels_as: str) -> None:
        """Replaces an array by its sum over the islands' workers with this one's place.

        Args:
            array: the summands.
            travels_as: its element type, or one of half precision, to which the sum is rounded too.
        """
        from mpi4py import MPI

        is_whole = travels_as == array.dtype.name
        exchange = partial(self._across.Allreduce, MPI.IN_PLACE) if is_whole else partial(self._sum_as, travels_as)
        self._in_pieces(array, exchange, self._across)
        sent_bytes = array.size * tf.as_dtype(travels_as).size
        self._sent_bytes += 2 * (self.terms.count - 1) * sent_bytes // self.terms.count

    def _sum_as(self, travels_as: str, piece: Array) -> None:
        """Sums in the array's element type what travels in another, for which MPI has no sums.

        Each worker sums a part of what all send it, in the order of islands, and sends the sum to all.
        """
        size, half = self._across.Get_size(), tf.as_dtype(travels_as).as_numpy_dtype
        sent = np.zeros(-(-piece.size // size) * size, half)
        sent[: piece.size] = piece
        parts = np.empty_like(sent)
        self._across.Alltoall(sent.view(np.uint16), parts.view(np.uint16))
        own = parts.reshape(size, -1).astype(piece.dtype).sum(0).astype(half)
        self._across.Allgather(own.view(np.uint16), sent.view(np.uint16))
        piece[:] = sent[: piece.size]

    def _in_pieces(self, array: Array, exchange: Callable[[Array], None], comm: Comm) -> None:
        if comm.Get_size() == 1:
            return
        barrier(comm)
        for begin in range(0, array.size, _PIECE_ELEMENTS):
            exchange(array[begin : begin + _PIECE_ELEMENTS])

    def _compare(self) -> None:
        """Compares the leaders' centres.

        Raises:
            GuardError: on all workers, when they differ.
        """
        if not self.checks:
            return
        digest = hashlib.blake2b(digest_size=8)
        for centre in self._centres:
            for dtype, values in sorted(centre.values.items() if centre is not None else ()):
                digest.update(dtype.encode() + np.nan_to_num(values).tobytes())  # the bits of NaN mean nothing
        found = self._workers.allgather(digest.digest() if self._is_leader else None)
        leaders = found[:: self.members.replicas]
        other = next((number for number, one in enumerate(leaders) if one != leaders[0]), None)
        if other is not None:
            raise GuardError(
                f"The leaders of all islands must have the same centre, and after update {self.updates} those of "
                f"islands 0 and {other} differ. Start again from the last checkpoint; if it recurs, report it."
            )

    def _average_rows(self, table: _MarkedTable, session: Session) -> None:
        """Averages the rows of a table that were touched in any island since the last meeting."""
        from mpi4py import MPI

        ops, rows = table.rows.ops, table.rows.ownership.count(self.members.replica, table.rows.stored.rows)
        numbers = np.arange(rows)
        if table.marks is not None:
            bits = np.packbits(session.run(table.marks))
            self._in_pieces(bits, lambda piece: self._across.Allreduce(MPI.IN_PLACE, piece, MPI.BOR), self._across)
            self._sent_bytes += 2 * (self.terms.count - 1) * bits.nbytes // self.terms.count
            numbers = np.flatnonzero(np.unpackbits(bits, count=rows))
        if len(numbers):
            own = ops.pick(session, 0, numbers)
            total = np.array(own, wire_type(table.rows.stored))
            self._total(total.reshape(-1), total.dtype.name)
            total /= self.terms.count
            session.run(ops.update, {ops.local_rows: numbers, ops.new_rows: total.astype(own.dtype, copy=False)})


@dataclass
class MeetingsBetweenSteps:
    """Counts the updates of a session without checkpoints, and has islands meet between its runs.

    Attributes:
        meetings: of this worker.
        training: identifies the runs that are updates.
        is_hooked: whether the hook of checkpoints counts them, which saves after meetings.
        done: never.
    """

    meetings: IslandMeetings
    training: TrainingRuns
    is_hooked: bool
    done: bool = False

    def after_run(self, fetched: tuple[str, ...], seconds: float) -> None:
        """Counts a run, if it is an update."""
        if not self.is_hooked and self.training.trains(fetched):
            self.meetings.count_update()


def meetings_of(
    analysed: AnalysedGraph,
    plan: Plan,
    worker_graph: WorkerGraph,
    members: ProcessGroup,
    worker: WorkerContext,
    checks: bool,
) -> IslandMeetings | None:
    """The meetings of a job in islands; None where all workers train together. Every worker must call it.

    Args:
        analysed: the user's graph.
        plan: of the job.
        worker_graph: of this worker.
        members: the job.
        worker: of the session.
        checks: whether leaders compare their centres.

    Raises:
        SessionError: a variable cannot be averaged.
    """
    if plan.islands is None:
        return None
    averaged = find_averaged_variables(worker.graph, analysed, plan, worker_graph.spread)
    return IslandMeetings(plan.islands, members, worker, averaged, checks)
