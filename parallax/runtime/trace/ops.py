"""Reads TensorFlow's measurements of one step, op by op, and classifies each op by its kind of work.

All times are microseconds of the wall clock of the host where the op ran.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from parallax.base.types import NodeDef, StepStats
from parallax.transform.building.all_to_all import is_collective
from parallax.transform.passes.cut_stages import RECEIVE
from parallax.transform.passes.turns import GATE
from parallax.transform.swap import as_planned

PULL, COMPUTE, PUSH, ALL_REDUCE, WAITING = "pull", "compute", "push", "all-reduce", "waiting"
KINDS = (PULL, COMPUTE, PUSH, ALL_REDUCE, WAITING)

GIVES = frozenset({"AccumulatorApplyGradient", "SparseAccumulatorApplyGradient"})
"""Ops by which all workers synchronize on a server: later ops run after the last worker's contribution."""

TRANSFER = "RecvTensor"

# They wait from the beginning of a run, for the workers' contributions, which are analysed separately, for messages of
# other stages, or for earlier runs.
_STANDS_BY = frozenset({"QueueDequeueV2", "AccumulatorTakeGradient", "SparseAccumulatorTakeGradient", RECEIVE, GATE})
_LOCK = "MutexLock"
_KIND_BY_SCOPE = {
    "pull": PULL,
    "refresh": PULL,
    "whole": PULL,
    "push": PUSH,
    "accumulate": PUSH,
    "collect": PUSH,
    "deliver": PUSH,
    "scatter": PUSH,
    "lock": PUSH,
    "all_reduce": ALL_REDUCE,
    "joined": ALL_REDUCE,
    "broadcast": ALL_REDUCE,
    "meet": ALL_REDUCE,
    "shared_rows": ALL_REDUCE,
    "stage": PUSH,
}
_SCOPE = re.compile(r"parallax/([a-z_]+?)(?:_\d+)?/")
_SERVER = re.compile(r"/job:ps/replica:\d+/task:(\d+)/")
_TRANSFERRED = re.compile(r"edge_\d+_(\S+) from (\S+) to (\S+)")


@dataclass(frozen=True, slots=True)
class Op:
    """One op of one step.

    Attributes:
        name: of its node; of a transfer, the node whose value was transferred.
        type: of the op, `RecvTensor` for a transfer; empty if TensorFlow does not report it.
        kind: one of KINDS.
        start_us: when it began, on the clock of its process.
        end_us: when it was done; for a collective, when the result was available.
        server: the number of the server that it ran on; None on the worker.
    """

    name: str
    type: str
    kind: str
    start_us: int
    end_us: int
    server: int | None = None

    @property
    def has_rendezvous(self) -> bool:
        """Whether all workers (or those of a host) must arrive before any continues."""
        return is_collective(self.type) or (self.type in GIVES and self.name.startswith("parallax/"))


@dataclass(frozen=True, slots=True)
class Step:
    """The ops of one step of one rank, or of one of its micro-batches.

    Attributes:
        number: of the step.
        ops: sorted by start.
        micro_batch: the number of the micro-batch.
        allocations: when a tensor took memory or gave it back, in microseconds, and its bytes, negative if it gave it
            back; of tensors that did both in this step.
    """

    number: int
    ops: tuple[Op, ...]
    micro_batch: int = 0
    allocations: tuple[tuple[int, int], ...] = ()


def read_step(number: int, step_stats: StepStats, micro_batch: int = 0) -> Step:
    """The step, or a micro-batch of a step, of a RunMetadata's `step_stats`."""
    ops: list[Op] = []
    allocations: list[tuple[int, int]] = []
    for device in step_stats.dev_stats:
        # GPUs report kernels by stream, and all of them once more (never seen: no machine with a GPU).
        if "stream:" in device.device and not device.device.endswith("stream:all"):
            continue
        server = _SERVER.search(device.device)
        for node in device.node_stats:
            one = _op(node, int(server[1]) if server else None)
            if one is not None:
                ops.append(one)
            allocations += list_allocations(node)
    ordered = sorted(ops, key=lambda op: (op.start_us, op.end_us, op.name))
    return Step(number, tuple(ordered), micro_batch, tuple(sorted(allocations)))


def list_allocations(node: NodeDef) -> Iterator[tuple[int, int]]:
    """The times and bytes of an op's allocations and deallocations, except of tensors that outlive the step."""
    for one in node.memory:
        records = [(int(record.alloc_micros), int(record.alloc_bytes)) for record in one.allocation_records]
        freed = Counter(-size for _, size in records if size < 0)
        for at_us, size in records:
            if size > 0:
                if not freed[size]:
                    continue
                freed[size] -= 1
            yield at_us, size


def kind_of(name: str, op_type: str) -> str:
    """The kind of an op, from its name scope; of a user's own collective, from its type."""
    if op_type == _LOCK and name.startswith("parallax/"):
        return WAITING
    scope = _SCOPE.match(name)
    if scope and scope[1] in _KIND_BY_SCOPE:
        return _KIND_BY_SCOPE[scope[1]]
    return ALL_REDUCE if is_collective(op_type) else COMPUTE


def _op(node: NodeDef, server: int | None) -> Op | None:
    start_us = int(node.all_start_micros + node.op_start_rel_micros)
    end_us = max(start_us, int(node.all_start_micros + node.op_end_rel_micros))
    if node.node_name == TRANSFER:
        return _transfer(str(node.timeline_label), server, start_us, end_us)
    name = as_planned(str(node.node_name))
    op_type = str(node.timeline_label).partition(" = ")[2].partition("(")[0]
    if op_type in _STANDS_BY and name.startswith("parallax/"):
        return None
    return Op(name, op_type, kind_of(name, op_type), start_us, end_us, server)


def _transfer(label: str, server: int | None, start_us: int, end_us: int) -> Op | None:
    """A value that was received over the network; TensorFlow has its start from the sender's clock."""
    match = _TRANSFERRED.search(label)
    if match is None:
        return None
    name = as_planned(match[1])
    kind = kind_of(name, "")
    if kind == COMPUTE:  # a gradient sent to a server, or a server's result
        kind = PUSH if server is not None else PULL
    return Op(name, TRANSFER, kind, start_us, end_us, server)
