"""The memory of the workers of a model in stages: variables, exchanges, and the activations of the runs in flight."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from parallax.analysis.routes.count_touched import touched_of
from parallax.analysis.routes.memory import footprint
from parallax.analysis.whatif.memory import FixedMemory, HostMemory, compare_with_hosts, count_moved_bytes
from parallax.base.errors import NotEnoughMemory
from parallax.cluster.plan_inputs import PlanInputs
from parallax.graph.spec import GraphSpec
from parallax.plans.memory import LargePart, MemoryPlan, ProcessUse
from parallax.plans.model_stages import count_activation_bytes, runs_in_flight
from parallax.plans.plan import Plan, PlanConstraints
from parallax.plans.prediction import ProcessMemory
from parallax.report.text import bytes_text


@dataclass(frozen=True, slots=True)
class StageMemory:
    """The bytes of a worker of one stage.

    Attributes:
        values: of variables.
        slots: of optimizer state.
        buffers: of accumulated gradients and of exchanges.
        activations: of an example of a replica's micro-batch, in all runs in flight; of the micro-batch where its
            length is fixed.
    """

    values: float
    slots: float
    buffers: float
    activations: int


def measure_stages(
    plan: Plan, spec: GraphSpec, constraints: PlanConstraints, measured: PlanInputs
) -> tuple[StageMemory, ...]:
    """The memory of the workers of each stage.

    Args:
        plan: the plan.
        spec: the variables.
        constraints: the user's requirements.
        measured: the profiles.
    """
    replicas, count, found = plan.num_replicas, len(plan.stages), []
    for number, stage in enumerate(plan.stages):
        values = slots = buffers = 0.0
        others = float(stage.held_bytes)
        for variable in (spec.variable(name) for name in stage.variables):
            route, touched = plan.variable(variable.name).route, touched_of(variable, constraints, measured)
            held = footprint(variable, route, touched, replicas, (), plan.accumulate_steps)
            stored = held.copies + held.spread / replicas
            both = variable.value_bytes + variable.slots_bytes
            values += stored * (variable.value_bytes / both if both else 1.0)
            slots += stored * (variable.slots_bytes / both if both else 0.0)
            buffers += held.copied_buffers + held.spread_buffers / replicas
            others -= variable.value_bytes * (2 if plan.accumulate_steps > 1 else 1) + variable.slots_bytes
        kept = count_activation_bytes(stage, runs_in_flight(number, count, plan.accumulate_steps))
        found.append(StageMemory(values + max(0.0, others), slots, buffers, kept))
    return tuple(found)


def list_process_memory(
    plan: Plan, stages: Sequence[StageMemory], examples: float, base_bytes: int
) -> tuple[ProcessMemory, ...]:
    """The memory of each worker of a plan in stages.

    Args:
        plan: the plan.
        stages: the memory of a worker of each stage.
        examples: of a replica's micro-batch.
        base_bytes: of a worker besides variables and activations.
    """
    found = [
        (round(one.values + one.slots), round(one.buffers), base_bytes + round(examples * one.activations))
        for one in stages
    ]
    return tuple(
        ProcessMemory("worker", rank, host, *found[plan.grid.place(rank)[1]])
        for rank, host in enumerate(plan.layout.host_by_rank)
    )


def check_room(memory: Sequence[ProcessMemory], measured: PlanInputs, most_bytes: int | None) -> None:
    """Refuses processes that need more memory than their host has, where that is known.

    Raises:
        NotEnoughMemory: names the host.
    """
    limits = [most_bytes] * (1 + max((one.host for one in memory), default=0))
    for host, one in enumerate(() if measured.cluster is None else measured.cluster.hosts[: len(limits)]):
        limits[host] = one.memory_bytes if most_bytes is None else min(most_bytes, one.memory_bytes)
    for host, limit in enumerate(limits):
        needed = sum(one.values_bytes + one.exchange_bytes + one.model_bytes for one in memory if one.host == host)
        if limit is not None and needed > limit:
            raise NotEnoughMemory(
                f"Not enough memory on host {host}: variables, buffers and activations need {bytes_text(needed)}, and "
                f"it has {bytes_text(limit)}. Add hosts, take smaller batches, or allow stages='auto'."
            )


def staged_memory_plan(
    plan: Plan, stages: Sequence[StageMemory], examples: int, hosts: Sequence[HostMemory], fixed: FixedMemory
) -> MemoryPlan:
    """The memory of a job in stages beside that of its hosts, and the largest micro-batch that fits.

    Args:
        plan: the plan.
        stages: the memory of a worker of each stage.
        examples: of a replica's micro-batch; 0 where they are unknown, so that activations are not counted.
        hosts: all hosts of the job.
        fixed: all other memory of processes.
    """
    chunk_bytes = min(fixed.chunk_bytes, max((round(one.values) for one in stages), default=0))
    uses, growth = [], []
    for rank, host in enumerate(plan.layout.host_by_rank):
        one = stages[plan.grid.place(rank)[1]]
        moved = count_moved_bytes("worker", rank, True, chunk_bytes)
        values, slots, buffers = round(one.values), round(one.slots), round(one.buffers)
        kept, base_bytes = examples * one.activations, fixed.base_bytes
        uses.append(ProcessUse("worker", rank, host, values, slots, buffers, round(moved), kept, base_bytes))
        growth.append((host, one.activations))
    processes, on_hosts = compare_with_hosts(uses, hosts, fixed)
    room = []
    for number, host_use in enumerate(on_hosts):
        of_example = sum(size for host, size in growth if host == number)
        without = host_use.needs_bytes - examples * of_example
        room += [(host_use.has_bytes - without) / of_example] if of_example else []
    largest = None if not room else max(0, math.floor(min(room)))
    most = max(uses, key=lambda use: use.total_bytes)
    parts = {
        "activations": most.activation_bytes,
        "interpreter and frameworks": most.base_bytes,
        "gradients and buffers": most.buffer_bytes,
        "variables with slots": most.values_bytes + most.slots_bytes,
    }
    ordered = sorted(parts, key=lambda what: (-parts[what], what))
    note = (
        "activations are those of all micro-batches in flight on a stage; batches are a replica's micro-batches"
        if examples
        else "activations are not counted: the graph leaves the batch open; set its length with --examples"
    )
    dominating = tuple(LargePart(what, parts[what]) for what in ordered if parts[what])
    return MemoryPlan(processes, on_hosts, dominating, examples, largest, (note,))
