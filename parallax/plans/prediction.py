"""A plan's predictions for one step: its phases in time, the load of each link, and the memory of every process.

Frozen values. Seconds come from a cluster profile alone; without one there are only bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from parallax.base.strict import Amount, Count, Finite, Text

Route = Annotated[str, Meta(pattern="^(allreduce|allgather|alltoall|ps|none)$")]
"""The names of routes in plan.py."""

SESSION, COMPUTE = "session", "compute"
"""Names of the phases that are not exchanges."""

LINK, TOUCHED = "link", "touched_rows"
"""The quantities on which a choice of route may depend: the rate of all links, scaled equally; the variable's touched
rows.
"""


@dataclass(frozen=True, slots=True)
class CostTerm:
    """One term of a route's cost for one variable.

    Attributes:
        phase: the phase of the step that it is in.
        what: `rounds` of latency, or bytes on a `link`, or bytes `beside` it (copies, checks).
        seconds: of this part.
        link_bytes: the bytes behind the term; 0 for rounds.
    """

    phase: Text
    what: Annotated[str, Meta(pattern="^(rounds|link|beside)$")]
    seconds: Finite
    link_bytes: Count = 0


@dataclass(frozen=True, slots=True)
class RunnerUp:
    """The best of the routes that were not chosen, all other variables as planned.

    Attributes:
        route: its name.
        more_s: seconds by which the predicted step would be longer.
    """

    route: Route
    more_s: Finite


@dataclass(frozen=True, slots=True)
class Flip:
    """A value at which the planner would give a variable another route.

    In a small model the whole plan is computed again at the value; in a large one all other variables stay as planned.

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
    """A phase of the predicted step.

    Attributes:
        name: what happens in it.
        start_s: seconds from the start of the step.
        end_s: its end.
        host: the number of the host whose link is the bottleneck; None when no link is.
    """

    name: Text
    start_s: Amount
    end_s: Amount
    host: Count | None = None


@dataclass(frozen=True, slots=True)
class HostLoad:
    """The bytes that the processes of one host send to other hosts in a step, and receive from them.

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
    """The memory of a process.

    Attributes:
        kind: `worker` or `server`.
        number: its rank among the workers, or its number among the servers.
        host: the number of its host.
        values_bytes: of variables and slots.
        exchange_bytes: of buffers of the exchanges of a step, at most.
        model_bytes: all other memory, as measured; 0 when it was not measured.
    """

    kind: Text
    number: Count
    host: Count
    values_bytes: Count
    exchange_bytes: Count
    model_bytes: Count


@dataclass(frozen=True, slots=True)
class Prediction:
    """The predictions for a plan.

    Attributes:
        step_s: seconds of a step; None when they are unknown.
        unknown: why they are unknown, and the remedy; empty when they are known.
        has_compute: whether `step_s` includes the compute time; else it is the time of the exchanges alone.
        phases: of a step, in the order of their start; empty when times are unknown.
        loads: by host; empty when times are unknown.
        memory: of every process, workers first; buffers are left out where touched rows are unknown.
        lower_bound_s: no choice of routes, partitions and owners has a shorter predicted step.
        gap: (step_s - lower_bound_s) / step_s; 0 when the plan is proven optimal.
        bound_of: the choices that the bound covers: all, or those left by a rule or a search.
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
    """A profile from which a plan was made.

    Attributes:
        kind: `cluster` or `model`.
        name: of its file; empty when there was none.
        fingerprint: SHA-256 of the profile.
    """

    kind: Text
    name: Text
    fingerprint: Text
