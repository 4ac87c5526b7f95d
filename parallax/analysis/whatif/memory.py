"""Compares the memory of every process of a plan with that of its host, and finds the largest batch that fits.

A process stores its values and slots, the buffers of exchanges, and the tensors that are live while each op of a step
runs (live_bytes.py). All but the first grow linearly with the batch, or not at all. So at each op a host has room for a
certain number of examples, and the minimum over the ops is the largest batch: no batch is tried.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parallax.analysis.routes.count_touched import TouchedRowCount, touched_of
from parallax.analysis.routes.memory import Footprint, footprint
from parallax.cluster.plan_inputs import PlanInputs
from parallax.graph.spec import GraphSpec, VariableSpec
from parallax.plans.memory import BATCH, HostUse, LargePart, LiveBytes, MemoryPlan, ProcessUse
from parallax.plans.plan import ALLTOALL, NO_ROUTE, PS, Plan, PlanConstraints

_SHOWN_PARTS = 4
_CHUNKS_READ, _CHUNKS_WRITTEN = 2, 4
"""Buffers, in chunks, of rows in transfer to a checkpoint: those that a worker reads and sends; and those that a
writing worker receives, sorts, and buffers for a file, which TensorFlow copies.
"""


@dataclass(frozen=True, slots=True)
class HostMemory:
    """A host's name, its memory in bytes, and the source of that size (parallax/plans/memory.py)."""

    name: str
    has_bytes: int
    says: str


@dataclass(frozen=True, slots=True)
class FixedMemory:
    """The memory of processes that does not depend on variables and steps.

    Attributes:
        base_bytes: of a worker or server before it has created a variable.
        chunk_bytes: of rows that checkpoints move at once; 0 where there are none.
        launcher_bytes: of the launcher while the job runs.
        launcher_host: the number of its host; None where it is on no host of the job.
    """

    base_bytes: int
    chunk_bytes: int = 0
    launcher_bytes: int = 0
    launcher_host: int | None = None


@dataclass(frozen=True, slots=True)
class VariableMemory:
    """A variable, its route in the plan, and its memory on that route."""

    variable: VariableSpec
    route: str
    owner_rows: tuple[int, ...]
    footprint: Footprint

    @property
    def grows(self) -> bool:
        """Whether its buffers contain rows that steps touch."""
        return (
            self.variable.has_slices and self.route != PS or self.footprint.servers != () and self.variable.has_slices
        )

    def share(self, kind: str, number: int) -> float:
        """The share of the rows that a process owns."""
        if kind == "server":
            return dict(self.footprint.servers).get(number, 0.0)
        if self.route != ALLTOALL or not self.owner_rows:
            return 0.0
        return self.owner_rows[number] / max(sum(self.owner_rows), 1)

    def count_bytes(self, kind: str, number: int) -> float:
        """Bytes of values and slots in a process."""
        share = self.share(kind, number)
        return (
            share * self.footprint.served if kind == "server" else self.footprint.copies + share * self.footprint.spread
        )

    def buffers(self, kind: str, number: int) -> float:
        """Bytes of buffers in a process."""
        share, takes = self.share(kind, number), self.footprint
        return share * takes.served_buffers if kind == "server" else takes.copied_buffers + share * takes.spread_buffers


def list_variable_memory(
    spec: GraphSpec, plan: Plan, constraints: PlanConstraints, measured: PlanInputs
) -> tuple[VariableMemory, ...]:
    """The memory of every variable on its route in the plan."""
    variables = []
    for variable in spec.variables:
        planned, touched = plan.variable(variable.name), touched_of(variable, constraints, measured)
        takes = footprint(variable, planned.route, touched, plan.num_workers, planned.servers, plan.accumulate_steps)
        variables.append(VariableMemory(variable, planned.route, planned.owner_rows, takes))
    return tuple(variables)


def gradient_bytes(variables: Sequence[VariableMemory]) -> dict[str, float]:
    """Variable op -> bytes of its dense gradient and of the buffers of its exchange in a worker."""
    bytes_by_variable = {}
    for one in variables:
        if not one.variable.has_slices and one.route != NO_ROUTE:
            whole = max(math.prod(one.variable.shape), 1)
            for part in one.variable.parts:
                bytes_by_variable[part.op] = one.footprint.copied_buffers * math.prod(part.shape) / whole
    return bytes_by_variable


def touched_rows(spec: GraphSpec, constraints: PlanConstraints, measured: PlanInputs) -> dict[str, float]:
    """Variable op -> the number of rows that a worker touches in a step, where it is known."""
    rows_by_variable: dict[str, float] = {}
    for variable in spec.variables:
        touched: TouchedRowCount | None = touched_of(variable, constraints, measured)
        if touched is not None:
            rows_by_variable.update({part.op: touched.one for part in variable.parts})
    return rows_by_variable


def memory_plan(
    plan: Plan,
    variables: Sequence[VariableMemory],
    live: LiveBytes,
    hosts: Sequence[HostMemory],
    fixed: FixedMemory,
) -> MemoryPlan:
    """The memory of a plan's processes.

    Args:
        plan: the plan.
        variables: its variables.
        live: the live bytes of a worker's step.
        hosts: all hosts of the job.
        fixed: all other memory of processes.
    """
    chunk_bytes = min(fixed.chunk_bytes, max((one.variable.value_bytes for one in variables), default=0))
    members = [("worker", rank, host) for rank, host in enumerate(plan.layout.host_by_rank)]
    members += [("server", number, host) for number, host in enumerate(plan.servers)]
    all_write = any(one.route in (ALLTOALL, PS) for one in variables)
    moved = [count_moved_bytes(kind, number, all_write, chunk_bytes) for kind, number, _ in members]
    series = [_series(variables, live, kind, number, m) for (kind, number, _), m in zip(members, moved, strict=True)]
    uses = [
        _make_process_use(variables, one, member, fixed.base_bytes) for one, member in zip(series, members, strict=True)
    ]
    processes, on_hosts = compare_with_hosts(uses, hosts, fixed)
    room = []
    for number, host in enumerate(on_hosts):
        here = [i for i, member in enumerate(members) if member[2] == number]
        of_steps = sum(uses[i].buffer_bytes + uses[i].moved_bytes + uses[i].activation_bytes for i in here)
        if here:
            room.append(_largest_factor(host.has_bytes - host.needs_bytes + of_steps, [series[i] for i in here]))
    factor = min(room, default=math.inf)
    largest = None if math.isinf(factor) else math.floor(max(0.0, factor) * max(live.examples, 1))
    parts = _dominating(variables, live, uses)
    return MemoryPlan(processes, on_hosts, parts, live.examples, largest, _notes(live))


def compare_with_hosts(
    uses: Sequence[ProcessUse], hosts: Sequence[HostMemory], fixed: FixedMemory
) -> tuple[tuple[ProcessUse, ...], tuple[HostUse, ...]]:
    """All processes, with the launcher if it is on a host of the job; and what they need on each host.

    Args:
        uses: workers and servers.
        hosts: all hosts of the job.
        fixed: has the launcher's memory.
    """
    processes = (*uses, *_launcher(fixed))
    needs = [sum(use.total_bytes for use in processes if use.host == number) for number in range(len(hosts))]
    return processes, tuple(
        HostUse(host.name, needed, host.has_bytes, host.says) for host, needed in zip(hosts, needs, strict=True)
    )


def _launcher(fixed: FixedMemory) -> list[ProcessUse]:
    """The memory of the launcher, where it is on a host of the job."""
    if fixed.launcher_host is None:
        return []
    return [ProcessUse("launcher", 0, fixed.launcher_host, 0, 0, 0, 0, 0, fixed.launcher_bytes)]


@dataclass(frozen=True, slots=True, eq=False)
class _Series:
    """The memory of a process at each op of a step, besides values and slots: arrays `[ops]`.

    Attributes:
        activations: those that do not depend on the batch.
        gradients: dense ones with their buffers.
        of_batch: activations of the batch as built.
        rows_buffers: of exchanged rows of the batch as built.
        moved: rows in transfer to a checkpoint, independent of the batch.
    """

    activations: NDArray[np.float64]
    gradients: NDArray[np.float64]
    of_batch: NDArray[np.float64]
    rows_buffers: float
    moved: float

    @property
    def total(self) -> NDArray[np.float64]:
        """The total."""
        return self.activations + self.gradients + self.of_batch + self.rows_buffers

    def at_peak(self) -> tuple[float, float]:
        """Bytes of dense gradients, and of activations, at the peak of their sum."""
        if not self.total.size:
            return 0.0, 0.0
        peak = int(np.argmax(self.total))
        return float(self.gradients[peak]), float(self.activations[peak] + self.of_batch[peak])


def count_moved_bytes(kind: str, number: int, all_write: bool, chunk_bytes: int) -> float:
    """A process's maximum memory for rows in transfer to a checkpoint: each worker writes a share of sharded rows."""
    writes = kind == "worker" and (all_write or number == 0)
    return float((_CHUNKS_READ + _CHUNKS_WRITTEN) * chunk_bytes) if writes else 0.0


def _series(variables: Sequence[VariableMemory], live: LiveBytes, kind: str, number: int, moved: float) -> _Series:
    nothing = np.zeros_like(live.fixed)
    shares = {part.op: one.share(kind, number) for one in variables for part in one.variable.parts}
    rows = sum((shares.get(table, 0.0) * sizes for table, sizes in live.of_rows.items()), nothing)
    of_rows = sum(one.buffers(kind, number) for one in variables if one.variable.has_slices)
    if kind == "server":
        whole = sum(one.buffers(kind, number) for one in variables if not one.variable.has_slices)
        return _Series(rows, nothing + whole, nothing, of_rows, moved)
    pieces = [shares.get(kind, 1.0) * size for kind, size in live.largest_of.items() if kind != BATCH]
    # Slots with one initial value share its memory until their first updates, which run concurrently and copy it.
    pieces += [
        one.share(kind, number) * one.variable.rows * max(slot.width * slot.dtype_bytes for slot in one.variable.slots)
        for one in variables
        if len(one.variable.slots) > 1
    ]
    largest_bytes, largest_of_batch = max(pieces, default=0.0), live.largest_of.get(BATCH, 0.0)
    if largest_of_batch > largest_bytes:
        return _Series(live.fixed + rows, live.gradients, live.of_batch + largest_of_batch, of_rows, moved)
    return _Series(live.fixed + rows + largest_bytes, live.gradients, live.of_batch, of_rows, moved)


def _make_process_use(
    variables: Sequence[VariableMemory], series: _Series, member: tuple[str, int, int], base_bytes: int
) -> ProcessUse:
    kind, number, host = member
    gradients, activations = series.at_peak()
    values = slots = 0.0
    for one in variables:
        both = one.variable.value_bytes + one.variable.slots_bytes
        part = one.variable.value_bytes / both if both else 1.0
        values += part * one.count_bytes(kind, number)
        slots += (1.0 - part) * one.count_bytes(kind, number)
    return ProcessUse(
        kind,
        number,
        host,
        round(values),
        round(slots),
        round(gradients + series.rows_buffers),
        round(series.moved),
        round(activations),
        base_bytes,
    )


def _largest_factor(free: float, series: Sequence[_Series]) -> float:
    """The factor by which the batch may grow until some op runs out of memory; infinite where nothing grows."""
    fixed = sum(one.activations + one.gradients + one.moved for one in series)
    grows = sum(one.of_batch + one.rows_buffers for one in series)
    room = free - np.asarray(fixed)
    if (room < 0).any():
        return 0.0
    counted = np.asarray(grows) > 0
    return float(np.min(room[counted] / np.asarray(grows)[counted], initial=math.inf))


def _dominating(
    variables: Sequence[VariableMemory], live: LiveBytes, uses: Sequence[ProcessUse]
) -> tuple[LargePart, ...]:
    largest = max(uses, key=lambda use: use.total_bytes)
    parts: Mapping[str, float] = {
        "activations": largest.activation_bytes,
        "interpreter and frameworks": largest.base_bytes,
        "gradients and buffers": largest.buffer_bytes,
        "rows on their way to a checkpoint": largest.moved_bytes,
        **{_describe_variable(one): one.count_bytes(largest.kind, largest.number) for one in variables},
    }
    if live.largest[0] and largest.kind == "worker":
        parts = {
            f"{what} (largest: {live.largest[0]}, {round(live.largest[1])} bytes)" if what == "activations" else what: n
            for what, n in parts.items()
        }
    ordered = sorted(parts, key=lambda what: (-parts[what], what))
    return tuple(LargePart(what, round(parts[what])) for what in ordered[:_SHOWN_PARTS] if parts[what] >= 1)


def _describe_variable(one: VariableMemory) -> str:
    slots = len(one.variable.slots)
    return one.variable.name + (f" with {slots} slot{'s' if slots > 1 else ''}" if slots else "")


def _notes(live: LiveBytes) -> tuple[str, ...]:
    return (
        "activations are estimated from static shapes: what the ops of a step hold at one time, and as much as the "
        "largest tensor for freed memory in pieces",
        *live.notes,
    )
