"""The plan: for every variable its route, owners, predicted cost, the reason, and the rejected routes.

A frozen value with JSON both ways. The same graph, layout, requests and profiles give the same plan, byte for byte, on
every rank. Predictions for a step as a whole are in parallax/plans/prediction.py.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from parallax.base.errors import PlanError
from parallax.base.strict import Count, Finite, Positive, Text, checked_value, read_json, shown
from parallax.graph.spec import GraphSpec, VariableClass
from parallax.plans.island_plan import IslandPlan
from parallax.plans.model_stages import StagePlan, WorkerGrid
from parallax.plans.prediction import CostTerm, Flip, Prediction, ProfileUsed, Route, RunnerUp
from parallax.plans.sum_methods import SumRules

PLAN_VERSION = 3
ALLREDUCE, ALLGATHER, ALLTOALL, PS, NO_ROUTE = "allreduce", "allgather", "alltoall", "ps", "none"
ROUTES = (ALLREDUCE, ALLGATHER, ALLTOALL, PS)
RUN_OPTIONS = ("HYBRID", "PS", "MPI")
"""Dense by all-reduce and sparse by owners; all trained variables on servers; no servers."""

MOST_WORKERS, MOST_ELEMENTS = 2**17, 2**60
"""The limits of a plan that is read from a file: of a job's workers and hosts, and of a variable's elements."""

Counts = tuple[Count, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of a job for which a plan is made: the number of workers and servers, and their hosts.

    Attributes:
        hosts: the number of workers on each host, in the order of the ranks.
        servers: for each server that may be started, the number of its host.
        islands: how many islands of consecutive workers the resource file names; 1 for none.
    """

    hosts: tuple[int, ...]
    servers: tuple[int, ...] = ()
    islands: int = 1

    @property
    def num_workers(self) -> int:
        """Workers of all hosts."""
        return sum(self.hosts)

    @property
    def has_hosts_for_servers(self) -> bool:
        """Whether there are hosts with servers and without workers."""
        return 0 in self.hosts and any(not self.hosts[host] for host in self.servers)

    @property
    def host_by_rank(self) -> tuple[int, ...]:
        """The number of each worker's host."""
        return tuple(host for host, workers in enumerate(self.hosts) for _ in range(workers))


def server_fronts(hosts: Sequence[int], servers: Sequence[int]) -> tuple[int, ...]:
    """For each server its *front*: the one worker that sends requests to it for all workers, as it is on the same host.

    A worker then has W messages a hop with other hosts and one request to its own; W workers that each send to S
    servers make W S requests. On eight emulated hosts a step of `embed` takes 83 to 86 ms with fronts and 146 ms
    without.

    Args:
        hosts: the number of each worker's host.
        servers: the number of each server's host.

    Returns:
        A rank for each server. Empty where every worker sends its own requests: on one host, where a host has several
        workers (which merge their requests), and where a server's host has none.
    """
    if len(hosts) < 2 or len(set(hosts)) < len(hosts) or not set(servers) <= set(hosts):
        return ()
    return tuple(hosts.index(server) for server in servers)


def one_host(workers: int, servers: int = 1) -> Layout:
    """The layout of a single host."""
    return Layout((workers,), (0,) * servers)


@dataclass(frozen=True, slots=True)
class PlanConstraints:
    """The user's requirements of a plan.

    Attributes:
        run_option: one of RUN_OPTIONS.
        synchronous: whether every step uses the gradients of all workers.
        average_sparse: whether sparse gradients are the mean over the workers; else their sum.
        routes: variable name -> route.
        touched_rows: variable name -> distinct rows a worker reads in a step, where the graph's static shapes do not
            tell.
        partitions: variable name -> number of its partitions on servers.
        refused: variable name -> why servers cannot store it; found by propagation.
        merges_in_host: whether the workers of a host merge their requests, where several hosts have several workers.
        memory_bytes: memory available to the processes of a host together, where a profile states none or more.
        wire_dtype: the element type in which float32 travels, one of half_precision.WIRE_DTYPES; None for its own.
        accumulate_steps: the number of batches whose gradients a worker accumulates before they are sent.
        staleness: of asynchronous workers, how many runs one may be ahead of another; None for no bound.
    """

    run_option: str = "HYBRID"
    synchronous: bool = True
    average_sparse: bool = True
    routes: Mapping[str, str] = field(default_factory=dict)
    touched_rows: Mapping[str, int] = field(default_factory=dict)
    partitions: Mapping[str, int] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    merges_in_host: bool = True
    memory_bytes: int | None = None
    wire_dtype: str | None = None
    accumulate_steps: int = 1
    staleness: int | None = None


@dataclass(frozen=True, slots=True)
class RouteCost:
    """The cost of a route.

    Attributes:
        route: its name.
        sent_bytes: bytes that one worker sends per step, and also receives; for servers, the sum of what it sends and
            receives. None when the touched rows are unknown. A step is an update, with all its batches.
        rounds: sequential collectives per step.
        note: why it was not chosen, or is impossible.
        seconds: the increase of the predicted step by this variable on this route, all others as planned, over sending
            nothing; None when times or touched rows are unknown.
        terms: the cost of the route in isolation, without other traffic. Costs that it shares with others (rounds, a
            link that is not the busiest, time that compute hides) make `seconds` less than their sum.
    """

    route: Route
    sent_bytes: Count | None
    rounds: Count
    note: Text = ""
    seconds: Finite | None = None
    terms: tuple[CostTerm, ...] = ()


@dataclass(frozen=True, slots=True)
class VariablePlan:
    """One variable in the plan.

    Attributes:
        name: the user's name.
        cls: its class.
        shape: full shape.
        dtype: element type.
        route: how its gradients travel; `none` for untrained and local variables.
        owner_rows: for `alltoall` the rows that each worker owns, by rank, for `ps` those of each server; empty where
            every worker stores all rows.
        owner_pattern: for `alltoall`, the owners of rows in turn: row r belongs to worker `owner_pattern[r % P]` of P
            slots (parallax/graph/ownership.py); a worker may have several slots, or none. Empty where all have one, in
            order.
        touched_rows: distinct rows that a worker is expected to read of a batch: a mean as measured, rounded up, else
            an upper bound; None when unknown.
        touched_is_measured: whether they are a measured mean.
        cost: of the route.
        reason: why this route was chosen.
        rejected: the other routes.
        slots: names of the state that follows it.
        evidence: the ops that determine its class.
        servers: for `ps`, for each TensorFlow variable of which it consists, the server of each partition.
        runner_up: the best of the other routes; None where there is no other, or times are unknown.
        flips: the changes of conditions at which another route is chosen.
    """

    name: Text
    cls: VariableClass
    shape: Counts
    dtype: Annotated[str, Meta(pattern="^[a-z][a-z0-9_]{0,30}$")]
    route: Route
    owner_rows: Counts
    owner_pattern: Counts = field(default=(), kw_only=True)
    touched_rows: Count | None
    touched_is_measured: bool = field(default=False, kw_only=True)
    cost: RouteCost
    reason: Text
    rejected: tuple[RouteCost, ...] = ()
    slots: tuple[Text, ...] = ()
    evidence: tuple[Text, ...] = ()
    servers: tuple[Counts, ...] = ()
    runner_up: RunnerUp | None = None
    flips: tuple[Flip, ...] = ()


@dataclass(frozen=True)
class Plan:
    """The routes of all variables of one graph for a number of workers and servers.

    Attributes:
        version: of this format.
        fingerprint: of the graph.
        hosts: the number of workers on each host.
        servers: the host of each server that is started; empty when no variable needs one.
        run_option: one of RUN_OPTIONS.
        synchronous: whether every step uses the gradients of all workers.
        average_sparse: whether sparse gradients are the mean over the workers; else their sum.
        variables: sorted by name.
        notes: information for the user.
        prediction: for one step, and for the memory of every process.
        profiles: the measurements that were used.
        wire_dtype: the element type in which float32 travels between processes; None for its own.
        accumulate_steps: the number of batches whose gradients a worker accumulates before they are sent; a step has
            that many.
        stages: of the model, each computed by one worker of a replica; none where each worker has the whole model.
        sums: the methods of all-reduces by message size, as measured; without measurements the stated rule applies
            (parallax/plans/sum_methods.py).
        staleness: of asynchronous workers, how many runs one may be ahead of another; None for no bound.
        islands: how the workers are cut into islands; None where all train together. Routes and owners are then those
            of one island.
        is_by_stage: whether consecutive workers have the same stage; else they form a replica.
    """

    version: int
    fingerprint: Text
    hosts: Counts
    servers: Counts
    run_option: Annotated[str, Meta(pattern="^(HYBRID|PS|MPI)$")]
    synchronous: bool
    average_sparse: bool
    variables: tuple[VariablePlan, ...]
    notes: tuple[Text, ...] = ()
    prediction: Prediction = Prediction()
    profiles: tuple[ProfileUsed, ...] = ()
    wire_dtype: Annotated[str, Meta(pattern="^(bfloat16|float16)$")] | None = None
    accumulate_steps: Positive = 1
    stages: tuple[StagePlan, ...] = ()
    sums: tuple[SumRules, ...] = ()
    staleness: Positive | None = None
    islands: IslandPlan | None = None
    is_by_stage: bool = False

    @property
    def grid(self) -> WorkerGrid:
        """The replica and the stage of each worker."""
        stages = max(1, len(self.stages))
        return WorkerGrid(stages, self.num_workers // stages, self.is_by_stage)

    @property
    def num_workers(self) -> int:
        """The number of workers, W."""
        return sum(self.hosts)

    @property
    def num_replicas(self) -> int:
        """The number of model replicas that train together: W, divided by the number of stages, or of islands."""
        return self.num_workers // max(1, len(self.stages)) // self.num_islands

    @property
    def num_islands(self) -> int:
        """The number of islands; 1 where all workers train together."""
        return 1 if self.islands is None else self.islands.count

    @property
    def layout(self) -> Layout:
        """The layout that the plan was made for, with the servers that it uses."""
        return Layout(self.hosts, self.servers)

    @cached_property
    def _by_name(self) -> dict[str, VariablePlan]:
        return {variable.name: variable for variable in self.variables}

    def variable(self, name: str) -> VariablePlan:
        """The plan of one variable.

        Raises:
            PlanError: when no variable has that name.
        """
        if name in self._by_name:
            return self._by_name[name]
        known = ", ".join(v.name for v in self.variables)
        raise PlanError(f"The graph has no variable {name!r}. Its variables: {known}.")

    def to_json(self) -> str:
        """The plan as indented JSON, keys in a fixed order."""
        fields = asdict(self)
        for name in ("stages", "sums", "staleness", "islands", "is_by_stage"):  # only where there are any
            if not fields[name]:
                del fields[name]
        return json.dumps(fields, indent=1) + "\n"

    def check_belongs_to(self, spec: GraphSpec, layout: Layout) -> None:
        """Raises PlanError when this plan was made for another graph, or for other workers or servers."""
        if self.fingerprint != spec.fingerprint:
            raise PlanError(
                f"The plan was made for another graph: it is for graph {self.fingerprint[:12]}, and the script built "
                f"graph {spec.fingerprint[:12]}. Make a new plan with `parallax plan --json`."
            )
        if self.num_workers != layout.num_workers:
            raise PlanError(
                f"The plan was made for {self.num_workers} workers, but the job has {layout.num_workers}. Make a new "
                "plan with `parallax plan --json`, or change the number of workers."
            )
        if self.hosts != layout.hosts or (self.servers and self.servers != layout.servers):
            raise PlanError(
                f"The plan was made for other hosts: it is for hosts with {list(self.hosts)} workers and servers on "
                f"hosts {list(self.servers)}, but the job has {list(layout.hosts)} and {list(layout.servers)}. Make a "
                "new plan with `parallax plan --json`, or change the resource file."
            )


def plan_from_json(text: str, name: str = "plan") -> Plan:
    """Reads a plan.

    Args:
        text: JSON as written by `Plan.to_json`.
        name: the file's name, for messages.

    Raises:
        PlanError: when it is not a plan, or has another version.
    """
    raw = read_json(text, PlanError, name, "a plan file")
    version = raw.get("version")
    if version != PLAN_VERSION:
        raise PlanError(
            f"{shown(name)}: the plan file must have version {PLAN_VERSION}, got {version!r:.60}. Make a new plan with "
            "`parallax plan --json`."
        )
    try:
        plan = checked_value(raw, Plan)
        _check_places(plan)
    except ValueError as error:
        raise PlanError(
            f"{shown(name)}: the plan file is not as `parallax plan --json` writes it: {error}. Make a new plan with "
            "`parallax plan --json`."
        ) from error
    return plan


def read_plan(file: Path | str) -> Plan:
    """Reads a plan from its file.

    Raises:
        PlanError: when it cannot be read, or is not a plan.
    """
    path = Path(file)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise PlanError(
            f"{path}: cannot read the plan file: {error.strerror}. Write one with `parallax plan --json`."
        ) from error
    except UnicodeDecodeError as error:
        raise PlanError(
            f"{path}: the plan file must be UTF-8, and byte {error.start} is not. Write one with "
            "`parallax plan --json`."
        ) from error
    return plan_from_json(text, str(path))


def _check_places(plan: Plan) -> None:
    """Checks the fields against each other: the hosts, workers, servers and owners that they name must exist.

    Raises:
        ValueError: names those that do not exist.
    """
    if not 1 <= plan.num_workers <= MOST_WORKERS or len(plan.hosts) > MOST_WORKERS:
        raise ValueError(f"workers must be between 1 and {MOST_WORKERS}, got {plan.num_workers}")
    if plan.stages and (len(plan.stages) == 1 or plan.num_workers % len(plan.stages)):
        raise ValueError(f"{plan.num_workers} workers cannot be replicas of {len(plan.stages)} stages")
    if plan.num_workers % plan.num_islands:
        raise ValueError(f"{plan.num_workers} workers cannot be {plan.num_islands} islands of equally many")
    known = plan.prediction
    hosts = [*(load.host for load in known.loads), *(process.host for process in known.memory)]
    hosts += [phase.host for phase in known.phases if phase.host is not None]
    _below(len(plan.hosts), (*plan.servers, *hosts), "servers, loads or phases are of hosts that")
    if len({variable.name for variable in plan.variables}) < len(plan.variables):
        raise ValueError("two variables have the same name")
    for variable in plan.variables:
        what = f"{variable.name!r} has"
        _below(MOST_ELEMENTS, (math.prod(variable.shape),), f"{what} a shape of elements that")
        owners = len(plan.servers) if variable.servers else plan.num_replicas
        if variable.owner_rows and len(variable.owner_rows) != owners:
            raise ValueError(f"{what} rows of {len(variable.owner_rows)} owners, of which there are {owners}")
        if variable.touched_rows is not None and not variable.shape:
            raise ValueError(f"{what} touched rows, and a shape without rows")
        if variable.route != variable.cost.route:
            raise ValueError(f"{what} the costs of another route than its own")
        for part in variable.servers:
            _below(len(plan.servers), part, f"{what} partitions on servers that")


def _below(end: int, numbers: Iterable[int], what: str) -> None:
    if wrong := [number for number in numbers if number >= end]:
        raise ValueError(f"{what} are {wrong[0]}, and there are {end}")
