"""Predicts a step of a model in stages: its seconds, and the bytes of hosts.

The micro-batches are scheduled (list_schedule.py) as workers run them: stage s of P has at most P - s of them in
flight, a pass begins when its messages have arrived, and a message takes the link of its sender for the seconds of an
exchange of two, by the calibrated line of all-to-alls. So the idle share of equal stages with free messages is
(P - 1) / (m + P - 1). Gradients follow: stages on the same hosts share links, others exchange theirs concurrently.

Simplified: the backward pass takes twice the seconds of the forward pass. Replicas with stages on one host do not delay
each other's messages. Lookups of rows precede all micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from parallax.analysis.search.predict_plan import step_seconds
from parallax.analysis.timing.list_schedule import ListSchedule, schedule_one_step
from parallax.analysis.timing.schedule import Activity, step_of_activities
from parallax.base.errors import PlanError
from parallax.cluster.plan_inputs import PlanInputs
from parallax.cluster.profiles import ClusterProfile
from parallax.graph.spec import GraphSpec
from parallax.plans.model_stages import StagePlan, StageTurn, runs_in_flight
from parallax.plans.plan import ALLREDUCE, Layout, Plan, PlanConstraints
from parallax.plans.prediction import HostLoad, Phase, Prediction

PIPELINE, EXCHANGE = "micro-batches through the stages", "exchanges among replicas"
_FORWARD = 1 / 3


def predict_stages(
    plan: Plan, spec: GraphSpec, constraints: PlanConstraints, measured: PlanInputs, examples: float
) -> Plan:
    """A plan in stages with the prediction of its step, and of its workers' memory.

    Args:
        plan: the plan, with seconds of its stages.
        spec: the variables, with the ids that a replica looks up.
        constraints: the user's requirements.
        measured: profiles of the cluster and of a replica's steps.
        examples: of a replica's micro-batch.

    Raises:
        PlanError: the cluster profile lacks a measurement.
    """
    if measured.cluster is None:
        raise ValueError("A prediction needs a cluster profile.")
    hosts, grid = plan.layout.host_by_rank, plan.grid
    kinds = {tuple(hosts[rank] for rank in grid.find_replica(replica)): None for replica in range(grid.replicas)}
    slowest = max((_schedule(plan, of, measured.cluster, examples) for of in kinds), key=lambda one: one.step_s)
    stages = tuple(
        replace(stage, turns=tuple(_turns(plan, stage, number, slowest))) for number, stage in enumerate(plan.stages)
    )
    exchange_s = _exchange_seconds(plan, spec, constraints, measured)
    step_s = slowest.step_s + exchange_s
    phases = [Phase(PIPELINE, 0.0, slowest.step_s)]
    phases += [Phase(EXCHANGE, slowest.step_s, step_s)] if exchange_s else []
    found = Prediction(
        step_s, has_compute=True, phases=tuple(phases), loads=host_loads(plan, examples), memory=plan.prediction.memory
    )
    return replace(plan, stages=stages, prediction=found)


def _schedule(plan: Plan, hosts: Sequence[int], cluster: ClusterProfile, examples: float) -> ListSchedule:
    """The micro-batches of a replica whose stages are on these hosts."""
    passes = list(_activities(plan, hosts, cluster, examples))
    return schedule_one_step(step_of_activities(passes))


def _activities(plan: Plan, hosts: Sequence[int], cluster: ClusterProfile, examples: float) -> Iterator[Activity]:
    stages, batches = plan.stages, plan.accumulate_steps
    for number, stage in enumerate(stages):
        run_s, flying = stage.run_s or 0.0, runs_in_flight(number, len(stages), batches)
        senders = [other for other, one in enumerate(stages) if one.sent_to[number]]
        links = {
            to: _message_seconds(cluster, hosts[number], hosts[to], examples * sent) for to, sent in _receivers(stage)
        }
        for batch in range(batches):
            before = [f"{other}>{number} {batch}" for other in senders if other < number]
            after = [f"{other}>{number} {batch}" for other in senders if other > number]
            before += [f"backward {number} {batch - flying}"] if batch >= flying else []
            yield Activity(f"forward {number} {batch}", _FORWARD * run_s, f"stage {number}", tuple(before))
            after.append(f"forward {number} {batch}")
            yield Activity(f"backward {number} {batch}", (1 - _FORWARD) * run_s, f"stage {number}", tuple(after))
            for to, seconds in links.items():
                link = f"link {hosts[number]}" if hosts[number] != hosts[to] else None
                needed = f"{'forward' if to > number else 'backward'} {number} {batch}"
                yield Activity(f"{number}>{to} {batch}", seconds, link, (needed,))


def _receivers(stage: StagePlan) -> Iterator[tuple[int, int]]:
    return ((to, sent) for to, sent in enumerate(stage.sent_to) if sent)


def _message_seconds(cluster: ClusterProfile, source: int, target: int, sent_bytes: float) -> float:
    line = (cluster.within if source == target else cluster.across).get("alltoall")
    if line is None:
        where = "within a host" if source == target else "across hosts"
        raise PlanError(f"The cluster profile has no alltoall {where}. Measure it with `parallax calibrate`.")
    rate = min(cluster.hosts[source].out_bytes_per_s, cluster.hosts[target].in_bytes_per_s)
    return line.seconds(2, sent_bytes, None if source == target else rate)


def _turns(plan: Plan, stage: StagePlan, number: int, schedule: ListSchedule) -> Iterator[StageTurn]:
    lengths = {"forward": _FORWARD * (stage.run_s or 0.0), "backward": (1 - _FORWARD) * (stage.run_s or 0.0)}
    begins = sorted(
        (schedule.begins[f"{way} {number} {batch}"], way, batch)
        for way in lengths
        for batch in range(plan.accumulate_steps)
    )
    return (StageTurn(batch, way == "backward", begin, begin + lengths[way]) for begin, way, batch in begins)


def _exchange_seconds(plan: Plan, spec: GraphSpec, constraints: PlanConstraints, measured: PlanInputs) -> float:
    """Seconds of the exchanges of variables among replicas."""
    model = measured.model and replace(measured.model, compute_s=None, session_s=None, overlap_s=None)
    names_by_hosts: dict[tuple[int, ...], set[str]] = {}
    for number, stage in enumerate(plan.stages):
        names_by_hosts.setdefault(_count_workers(plan, number), set()).update(stage.variables)
    found = [0.0]
    for hosts, names in names_by_hosts.items():
        own = replace(spec, variables=tuple(v for v in spec.variables if v.name in names))
        alone = replace(plan, hosts=hosts, stages=())
        seconds = step_seconds(own, alone, Layout(hosts), constraints, replace(measured, model=model))
        if seconds is None:
            raise PlanError("The cluster profile lacks an operation of the plan. Measure it with `parallax calibrate`.")
        found.append(seconds)
    return max(found)


def _count_workers(plan: Plan, stage: int) -> tuple[int, ...]:
    """The number of workers of a stage on each host."""
    hosts = [plan.layout.host_by_rank[rank] for rank in plan.grid.find_team(stage)]
    return tuple(hosts.count(host) for host in range(len(plan.hosts)))


def host_loads(plan: Plan, examples: float) -> tuple[HostLoad, ...]:
    """The bytes of each host's link in a step: messages between stages, and exchanges of variables among replicas."""
    hosts, steps = plan.layout.host_by_rank, plan.accumulate_steps
    out, into = [0.0] * len(plan.hosts), [0.0] * len(plan.hosts)
    for rank, host in enumerate(hosts):
        replica, number = plan.grid.place(rank)
        for to, sent in _receivers(plan.stages[number]):
            other = hosts[plan.grid.find_replica(replica)[to]]
            if other != host:
                out[host] += sent * examples * steps
                into[other] += sent * examples * steps
    for number, stage in enumerate(plan.stages):
        team = [hosts[rank] for rank in plan.grid.find_team(number)]
        for name in stage.variables:
            variable = plan.variable(name)
            for host in set(team) if len(set(team)) > 1 else ():
                share = float(team.count(host))
                if variable.route == ALLREDUCE:  # workers of a host sum in its memory first
                    several, whole = len(set(team)), len(team)
                    share = (several - 1) / several * whole / (whole - 1)
                out[host] += share * (variable.cost.sent_bytes or 0)
                into[host] += share * (variable.cost.sent_bytes or 0)
    return tuple(HostLoad(host, round(out[host]), round(into[host])) for host in range(len(plan.hosts)))
