"""What a plan predicts of one step: its phases in time, what each link carries, and the memory of every process.

Frozen values. Seconds come from a cluster profile and from nothing else; without one there are bytes alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from parallax.base.strict import Amount, Count, Finite, Text

Route = Annotated[str, Meta(pattern="^(allreduce|allgather|alltoall|ps|none)$")]
"""One of plan.py's names of routes."""

SESSION, COMPUTE = "session", "compute"
"""Names of the phases that are no exchange."""

LINK, TOUCHED = "link", "touched_rows"
"""What a choice of route may hinge on: the rate of all links, scaled alike; the touched rows of the variable."""


@dataclass(frozen=True, slots=True)
class CostTerm:
    """A part of what a route costs one variable.

    Attributes:
        phase: the phase of the step that it is in.
        what: `rounds` that wait, or bytes on a `link`, or bytes `beside` it (copies, checks).
        seconds: of this part.
        link_bytes: those that the term is made of; 0 for rounds.
    """

    phase: Text
    what: Annotated[str, Meta(pattern="^(rounds|link|beside)$")]
    seconds: Finite
    link_bytes: Count = 0


@dataclass(frozen=True, slots=True)
class RunnerUp:
    """The best of the routes that were not taken, all other variables as planned.

    Attributes:
        route: its name.
        more_s: by how many seconds the predicted step would be longer.
    """

    route: Route
    more_s: Finite


@dataclass(frozen=True, slots=True)
class Flip:
    """Where the planner would give a variable another route.

    In a small model the whole plan is made anew at the value; in a large one all other variables stay as planned.

    Attributes:
        quantity: LINK or TOUCHED.
        value: of LINK, the rate of the slowest link in bytes per second, when all links are scaled alike; of TOUCHED,
            the distinct rows that a worker reads in a step.
        above: whether the other route is chosen above the value; else below.
        route: the other route.
    """

    quantity: Annotated[str, Meta(pattern="^(link|touched_rows)$")]
    value: Amount
    above: bool
    route: Route


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of the predicted step.

    Attributes:
        name: what happens.
        start_s: from the begin of the step.
        end_s: its end.
        host: the host whose link binds, by number; None when no link does.
    """

    name: Text
    start_s: Amount
    end_s: Amount
    host: Count | None = None


@dataclass(frozen=True, slots=True)
class HostLoad:
    """What the processes of one host send to other hosts in a step, and receive from them.

    Attributes:
        host: its number.
        out_bytes: sent.
        in_bytes: received.
    """

    host: Count
    out_bytes: Count
    in_bytes: Count


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """What a process holds.

    Attributes:
        kind: `worker` or `server`.
        number: its rank among the workers, or its number among the servers.
        host: the number of its host.
        values_bytes: of variables and slots.
        exchange_bytes: of buffers of the exchanges of a step, at most.
        model_bytes: of all else, as measured; 0 when it was not.
    """

    kind: Text
    number: Count
    host: Count
    values_bytes: Count
    exchange_bytes: Count
    model_bytes: Count


@dataclass(frozen=True, slots=True)
class Prediction:
    """What is expected of a plan.

    Attributes:
        step_s: seconds of a step; None when they are unknown.
        unknown: why they are, and what to do about it; empty when they are known.
        has_compute: whether `step_s` holds the time to compute; else it is that of the exchanges alone.
        phases: of a step, in the order of their start; empty when times are unknown.
        loads: by host; empty when times are unknown.
        memory: of every process, workers first; buffers are left out where touched rows are unknown.
        lower_bound_s: no choice of routes, partitions and owners has a predicted step below it.
        gap: (step_s - lower_bound_s) / step_s; 0 when the plan is proven to be the best.
        bound_of: which choices the bound is of: all there are, or those left by a rule or a search.
    """

    step_s: Amount | None = None
    unknown: Text = ""
    has_compute: bool = False
    phases: tuple[Phase, ...] = ()
    loads: tuple[HostLoad, ...] = ()
    memory: tuple[ProcessMemory, ...] = ()
    lower_bound_s: Finite | None = None
    gap: Finite | None = None
    bound_of: Text = ""


@dataclass(frozen=True, slots=True)
class ProfileUsed:
    """A profile that a plan was made with.

    Attributes:
        kind: `cluster` or `model`.
        name: of its file; empty when there was none.
        fingerprint: SHA-256 of the profile.
    """

    kind: Text
    name: Text
    fingerprint: Text
