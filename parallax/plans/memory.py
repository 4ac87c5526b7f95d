"""The memory section of a plan: the memory of each process of a job, that of hosts, and the largest batch that fits.

Frozen values of plain numbers, in bytes.

They follow from the bytes that are live while each op of a worker's training step runs (`LiveBytes`): plain arrays.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

MACHINE, PROFILE, RESOURCE_FILE = "this machine", "the cluster profile", "the resource file"
"""The sources of a host's memory size."""


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """The memory of a process at the peak of its step.

    Attributes:
        kind: `worker`, `server` or `launcher`.
        number: its rank among the workers, or its number among the servers; 0 for the launcher.
        host: the number of its host.
        values_bytes: of variables.
        slots_bytes: of optimizer state.
        buffer_bytes: of dense gradients and of the exchanges' buffers.
        moved_bytes: of rows in transfer to or from a checkpoint.
        activation_bytes: of all other tensors of a step.
        base_bytes: of interpreter, frameworks, graph and script.
    """

    kind: str
    number: int
    host: int
    values_bytes: int
    slots_bytes: int
    buffer_bytes: int
    moved_bytes: int
    activation_bytes: int
    base_bytes: int

    @property
    def total_bytes(self) -> int:
        """The total."""
        variables = self.values_bytes + self.slots_bytes
        return variables + self.buffer_bytes + self.moved_bytes + self.activation_bytes + self.base_bytes


@dataclass(frozen=True, slots=True)
class HostUse:
    """The memory that the processes of a host use together.

    Attributes:
        name: as users know it.
        needs_bytes: of all its processes.
        has_bytes: its memory.
        says: the source of that size: MACHINE, PROFILE or RESOURCE_FILE.
    """

    name: str
    needs_bytes: int
    has_bytes: int
    says: str

    @property
    def fits(self) -> bool:
        """Whether the memory suffices."""
        return self.needs_bytes <= self.has_bytes


@dataclass(frozen=True, slots=True)
class LargePart:
    """A part of the largest process's memory: `what` it is, and its bytes."""

    what: str
    held_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The memory of a plan.

    Attributes:
        processes: workers first, then servers, then the launcher if it is on a host of the job.
        hosts: those with processes, by number.
        dominating: the largest parts of the largest process, in descending order.
        examples: of a worker's batch; 0 where the graph leaves it open.
        largest_batch: examples of the largest per-worker batch for which every host has enough memory; 0 where none
            fits; None where nothing grows with the batch, or the batch is unknown.
        notes: what is estimated, and what is not counted.
    """

    processes: tuple[ProcessUse, ...]
    hosts: tuple[HostUse, ...]
    dominating: tuple[LargePart, ...]
    examples: int
    largest_batch: int | None
    notes: tuple[str, ...] = ()

    def to_json(self) -> str:
        """The JSON text that `parallax plan --memory --json` writes."""
        fields = asdict(self)
        for one, use in zip(fields["processes"], self.processes, strict=True):
            one["total_bytes"] = use.total_bytes
        for one, host in zip(fields["hosts"], self.hosts, strict=True):
            one["fits"] = host.fits
        return json.dumps(fields, indent=1) + "\n"


FIXED, BATCH, GRADIENTS = "fixed", "batch", "gradients"
"""Kinds of buffers; others are rows of a table, by its op."""


@dataclass(frozen=True, slots=True, eq=False)
class LiveBytes:
    """The bytes that are live while each op of a step runs; all arrays are `[ops]`, in bytes.

    Attributes:
        fixed: bytes that are independent of the batch.
        of_batch: bytes at the batch length as built; they grow with the examples.
        gradients: bytes of dense gradients, each as in `gradient_bytes`.
        of_rows: table op -> bytes of all its rows; an owner has its share.
        examples: of a per-worker batch; 0 where the graph leaves it open.
        largest_of: of each kind, or table op, the largest buffer. The allocator keeps freed memory in fragments of
            which small tensors occupy some, so a buffer as large as the largest one fits into no fragment and is
            allocated again.
        largest: the largest tensor of the batch, and its bytes; empty where there is none.
        notes: what is not counted.
    """

    fixed: NDArray[np.float64]
    of_batch: NDArray[np.float64]
    gradients: NDArray[np.float64]
    of_rows: Mapping[str, NDArray[np.float64]]
    examples: int
    largest_of: Mapping[str, float]
    largest: tuple[str, float] = ("", 0.0)
    notes: tuple[str, ...] = ()
