"""Switches a running session to another plan, between two steps.

The new plan's graph is added to the session's current graph (parallax/transform/swap.py), variables that the new plan
stores elsewhere are moved, and from then on the user's names map to the new graph. All steps that can fail because of
the graph or the plan come first: if one fails, nothing has changed, and the job trains on with its current plan.

Variables are moved one at a time: memory is allocated in the new place, the rows go through worker 0 in chunks, and the
old place is released. A worker never has more than its part of one variable twice, and worker 0 a chunk in addition.
Names, counters and checkpoints are then the new plan's. The old nodes stay in the session, unused, and servers that the
new plan does not need run idle until the end.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tensorflow as tf

from parallax.analysis.graph_to_plan import AnalysedGraph, rewrites_of
from parallax.base.errors import ParallaxError
from parallax.base.types import Comm, Graph, GraphDef, Operation, Session, Tensor, Value
from parallax.graph.view import VARIABLES, GraphView
from parallax.plans.plan import Plan
from parallax.plans.sum_methods import SumRules
from parallax.runtime.checkpoint.checkpoints import Checkpoints
from parallax.runtime.checkpoint.format.stored_tensors import CHUNK_BYTES, CheckpointEntry, chunks
from parallax.runtime.checkpoint.rows.access_to_rows import build_access
from parallax.runtime.checkpoint.rows.row_places import Places
from parallax.runtime.checkpoint.rows.variable_rows import StoredVariable
from parallax.runtime.guard.guard import Guard
from parallax.runtime.memory_checkpoints.hook import PeerMemory
from parallax.runtime.worker.ranks import WORKER_TASK, ProcessGroup
from parallax.runtime.worker.session.channels import open_channels
from parallax.runtime.worker.session.names import Names
from parallax.runtime.worker.session.run_context import WorkerContext
from parallax.transform.building import editor
from parallax.transform.pipeline import WorkerGraph, transform
from parallax.transform.swap import SwappedGraph, add_plan, outside


@dataclass(frozen=True, slots=True)
class PlanChangeResult:
    """The result of a change of plan.

    Attributes:
        refusal: why nothing has changed; empty if the new plan is in use.
        variables: how many were moved.
        moved_bytes: bytes of them, on worker 0.
        seconds: how long it took.
        redrawn: random ops that restarted.
    """

    refusal: str = ""
    variables: int = 0
    moved_bytes: int = 0
    seconds: float = 0.0
    redrawn: tuple[str, ...] = ()


class ChangeOver:
    """The current plan of one worker; all workers have one and call `to` after the same run.

    Args:
        members: the job.
        worker: this one's graph.
        analysed: the user's graph, with the additions of hooks.
        place: this worker's place among the workers.
        worker_graph: of the current plan.
        saved: the job's checkpoints, if there are any.
        guard: compares the workers, if enabled.
    """

    def __init__(
        self,
        members: ProcessGroup,
        worker: WorkerContext,
        analysed: AnalysedGraph,
        place: editor.Worker,
        worker_graph: WorkerGraph,
        saved: Checkpoints | None,
        guard: Guard | None = None,
        memory: PeerMemory | None = None,
    ) -> None:
        self._members = members
        self._worker = worker
        self._analysed = analysed
        self._place = place
        self._planned = worker_graph  # as returned by the transform
        self._places = places_of(worker_graph)
        self._names: Mapping[str, str] = {}
        self._saved = saved
        self._guard = guard
        self._memory = memory
        self._number = 1

    def to(self, plan: Plan, steps: int) -> PlanChangeResult:
        """Switches to a plan; every worker must call it with the same one, between two steps.

        Args:
            plan: the new one.
            steps: how many steps were done before.

        Returns:
            The result; on all workers a refusal if one of them cannot switch.
        """
        began_s = time.monotonic()
        self._number += 1
        new: WorkerGraph | None = None
        added: SwappedGraph | None = None
        stored: tuple[CheckpointEntry, ...] = ()
        refusal = decided = ""
        try:
            rewrites = rewrites_of(self._analysed, plan, self._place.equal_randomness)
            new = transform(self._analysed.captured.view, rewrites, self._place, overlaps=self._planned.overlaps)
            added = add_plan(self._planned, self._names, new, self._number)
            places = places_of(added.worker_graph, added.names)
            stored = to_be_moved(self._analysed.captured.view, self._places, places)
            decided = repr((rewrites, stored))
        except ParallaxError as error:
            refusal = str(error)
        refusal = self._agree(refusal, plan.to_json() + decided)
        if refusal or new is None or added is None:
            return PlanChangeResult(refusal)
        moved_bytes = self._move(added, stored, places, plan.sums)
        captured = self._analysed.captured
        self._worker.names = Names(captured.view, added.worker_graph, added.names, captured.fixed)
        if self._worker.plan is not None:
            self._worker.changes.append((steps, self._worker.plan))
        self._worker.follow(plan, added.worker_graph)
        self._planned, self._names, self._places = new, added.names, places
        return PlanChangeResult("", len(stored), moved_bytes, time.monotonic() - began_s, added.redrawn)

    def _agree(self, refusal: str, decided: str) -> str:
        """Returns why some worker cannot switch, or would switch differently; equal on all workers."""
        digest = hashlib.sha256(decided.encode()).hexdigest()
        answers = self._members.workers.allgather((refusal, digest))
        for rank, (of_rank, other) in enumerate(answers):
            if of_rank:
                return f"on worker {rank}: {of_rank}"
            if other != answers[0][1]:
                return f"worker {rank} would make another graph of it than worker 0"
        return ""

    def _move(
        self, added: SwappedGraph, stored: tuple[CheckpointEntry, ...], places: Places, sums: tuple[SumRules, ...]
    ) -> int:
        """Adds the new graph to the session's and moves the variables that change place; returns their bytes."""
        session, comm = self._worker.raw, self._members.workers
        open_channels(added.added, self._members.teams, sums)
        graph = session.graph
        graph._unsafe_unfinalize()  # TensorFlow's monitored session has finalized it, against ops by mistake
        home = f"/job:{WORKER_TASK}/task:{self._members.rank}" if self._members.target else None
        with graph.as_default():
            _add(graph, added.added)
            with tf.device(home):
                movements = moves(stored, self._places, places, comm)
                if self._saved is not None:
                    self._saved.switch_placement(self._worker.graph, places)
                if self._memory is not None:
                    self._memory.switch_placement(self._worker.graph, places)
                if self._guard is not None:
                    self._guard.follow(added.worker_graph, added.names)
        graph.finalize()
        for name in added.worker_graph.counter_initializers:
            session.run(name)
        return sum(move(session, one) for one in movements)


def places_of(worker_graph: WorkerGraph, names: Mapping[str, str] | None = None) -> Places:
    """The placement of variables in a plan.

    Args:
        worker_graph: made by it.
        names: node of the user's graph -> node in the session, if that is another.
    """
    stages = worker_graph.stages
    return Places(
        worker_graph.spread,
        worker_graph.partitions,
        worker_graph.on_servers,
        names or {},
        worker_graph.lazily_updated,
        {} if stages is None else stages.places,
        worker_graph.elsewhere,
        0 if stages is None else stages.stage,
    )


def _add(graph: Graph, added: GraphDef) -> None:
    """Adds nodes to a graph, which provides their missing inputs."""
    tensor_by_name = {}
    for name in outside(added):
        if name.startswith("^"):
            tensor_by_name[name] = graph.get_operation_by_name(name[1:]).outputs[0]
        else:
            tensor_by_name[name if ":" in name else f"{name}:0"] = graph.get_tensor_by_name(
                name if ":" in name else f"{name}:0"
            )
    tf.graph_util.import_graph_def(added, input_map=tensor_by_name, name="")


v1 = tf.compat.v1


@dataclass(frozen=True, slots=True)
class Move:
    """The move of one variable.

    Attributes:
        source: its current place.
        target: its new place.
        make: ops of this worker that allocate the new variables, with their feeds.
        free: ops of this worker that release memory.
    """

    source: StoredVariable
    target: StoredVariable
    make: tuple[tuple[Operation, dict[Tensor, Value]], ...]
    free: tuple[Operation, ...]


def to_be_moved(view: GraphView, before: Places, after: Places) -> tuple[CheckpointEntry, ...]:
    """The variables that the two place differently, in the order of the user's graph."""
    moved = []
    for name, node in view.nodes.items():
        if node.op not in VARIABLES or _place(name, before) == _place(name, after):
            continue
        dtype = tf.as_dtype(node.attr["dtype"].type)
        shape = tuple(int(dim.size) for dim in node.attr["shape"].shape.dim)
        moved.append(CheckpointEntry(name, name, dtype.name, int(dtype.size), shape, shape, (0,) * len(shape), False))
    return tuple(moved)


def moves(stored: Sequence[CheckpointEntry], before: Places, after: Places, comm: Comm) -> tuple[Move, ...]:
    """Builds the moves of variables in the default graph, which must be a worker's that has the ops of both.

    Args:
        stored: the variables.
        before: their current placement.
        after: their new placement.
        comm: communicator of the workers.
    """
    sources, targets = build_access(tuple(stored), before, comm), build_access(tuple(stored), after, comm)
    dims = v1.placeholder(tf.int64, [None], name="parallax/storage/dims")
    planned_moves = []
    for one, source, target in zip(stored, sources, targets, strict=True):
        old, new = (_list_local_storage(one.op, places, comm.Get_rank()) for places in (before, after))
        make = tuple(_make_zeros(op, dims) for op in new if op not in old)
        free = tuple(_free(op) for op in old if op not in new)
        planned_moves.append(Move(source, target, make, free))
    return tuple(planned_moves)


def move(session: Session, one: Move, chunk_bytes: int = CHUNK_BYTES) -> int:
    """Moves one variable; every worker must call it. Returns the bytes that went through worker 0, on worker 0."""
    for op, feeds in one.make:
        session.run(op, feeds)
    stored, moved_bytes = one.source.stored, 0
    for first, count in chunks(stored.rows, stored.row_bytes, chunk_bytes):
        rows = one.source.read(session, first, count)
        moved_bytes += int(getattr(rows, "nbytes", 0))
        one.target.write(session, first, count, rows)
    for op in one.free:
        session.run(op)
    return moved_bytes


def _place(op: str, places: Places) -> tuple[object, ...]:
    return places.here(op), places.partitions.get(op), places.spread.get(op), op in places.absent


def _list_local_storage(op: str, places: Places, rank: int) -> tuple[str, ...]:
    """The variables in the session that store part of a user's variable, for this worker to allocate and release."""
    served = places.partitions.get(op, ()) if rank == 0 else ()
    return (*(() if op in places.absent else (places.here(op),)), *served)


def _make_zeros(op: str, dims: Tensor) -> tuple[Operation, dict[Tensor, Value]]:
    """An op that allocates a variable of zeros, with its feeds: a constant would stay in the graph."""
    variable = v1.get_default_graph().get_operation_by_name(op)
    handle, dtype = variable.outputs[0], tf.as_dtype(variable.get_attr("dtype"))
    with tf.device(handle.device or None):
        value = tf.raw_ops.Fill(dims=dims, value=tf.zeros([], dtype))
        if handle.dtype == tf.resource:
            made = tf.raw_ops.AssignVariableOp(resource=handle, value=value)
        else:
            made = tf.raw_ops.Assign(ref=handle, value=value).op
    return made, {dims: tf.TensorShape(variable.get_attr("shape")).as_list()}


def _free(op: str) -> Operation:
    """An op that releases a variable's memory; a reference variable, which cannot be deleted, becomes empty."""
    handle = v1.get_default_graph().get_operation_by_name(op).outputs[0]
    with tf.device(handle.device or None):
        if handle.dtype == tf.resource:
            return tf.raw_ops.DestroyResourceOp(resource=handle)
        empty = tf.zeros([0], handle.dtype.base_dtype)
        return tf.raw_ops.Assign(ref=handle, value=empty, validate_shape=False).op
