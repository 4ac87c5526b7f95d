"""What a plan says of memory: what each process of a job holds, what hosts have, and the largest batch that fits.

Frozen values of plain numbers, in bytes.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

MACHINE, PROFILE, RESOURCE_FILE = "this machine", "the cluster profile", "the resource file"
"""Who says what a host has."""


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """What a process holds where its step holds the most.

    Attributes:
        kind: `worker`, `server` or `launcher`.
        number: its rank among the workers, or its number among the servers; 0 of the launcher.
        host: the number of its host.
        values_bytes: of variables.
        slots_bytes: of optimizer state.
        buffer_bytes: of dense gradients and of the exchanges' buffers.
        moved_bytes: of rows on their way to a checkpoint or from one.
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
        """All together."""
        variables = self.values_bytes + self.slots_bytes
        return variables + self.buffer_bytes + self.moved_bytes + self.activation_bytes + self.base_bytes


@dataclass(frozen=True, slots=True)
class HostUse:
    """What the processes of a host hold together.

    Attributes:
        name: as people know it.
        needs_bytes: of all its processes.
        has_bytes: its memory.
        says: who says that: MACHINE, PROFILE or RESOURCE_FILE.
    """

    name: str
    needs_bytes: int
    has_bytes: int
    says: str

    @property
    def fits(self) -> bool:
        """Whether there is enough."""
        return self.needs_bytes <= self.has_bytes


@dataclass(frozen=True, slots=True)
class LargePart:
    """A part of what the largest process holds: `what` it is, and its bytes."""

    what: str
    held_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The memory of a plan.

    Attributes:
        processes: workers first, then servers, then the launcher where it is on a host of the job.
        hosts: those with processes, by number.
        dominating: the largest parts of the process with the most, the largest first.
        examples: of a worker's batch; 0 where the graph leaves it open.
        largest_batch: examples of the largest batch of a worker with which every host has enough; 0 where none fits;
            None where nothing grows with the batch, or the batch is unknown.
        notes: what is estimated, and what is not counted.
    """

    processes: tuple[ProcessUse, ...]
    hosts: tuple[HostUse, ...]
    dominating: tuple[LargePart, ...]
    examples: int
    largest_batch: int | None
    notes: tuple[str, ...] = ()

    def to_json(self) -> str:
        """As `parallax plan --memory --json` writes it."""
        found = asdict(self)
        for one, use in zip(found["processes"], self.processes, strict=True):
            one["total_bytes"] = use.total_bytes
        for one, host in zip(found["hosts"], self.hosts, strict=True):
            one["fits"] = host.fits
        return json.dumps(found, indent=1) + "\n"
