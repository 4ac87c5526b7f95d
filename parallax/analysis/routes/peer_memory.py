"""The cost of state in the memory of other hosts, for each set: bytes to another host, seconds of its link, memory.

W workers, u touched rows of a worker's batch, k steps from one set to the next, d bytes of a row with its slots. Owners
send the touched rows among their own: at most k u of them each, as W batches touch W u rows that W owners share, and 8
bytes for the number of each. Of a table whose untouched rows change too, or of which u is unknown, they send at most
all of their rows. A host stores the rows of its own owners and of the preceding host, and the replicated state. Of
sets, it stores the last two, and a third while that is written.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from parallax.base.errors import PlanError
from parallax.graph.spec import GraphSpec
from parallax.plans.plan import Plan

_NUMBER_BYTES = 8
_SETS = 3


@dataclass(frozen=True, slots=True)
class PeerMemoryCost:
    """The maximum cost of a set.

    Attributes:
        sent_bytes: bytes that a worker sends to another host, and also receives; 0 on one host.
        host_bytes: memory of one host.
    """

    sent_bytes: int
    host_bytes: int


def peer_memory_cost(
    plan: Plan, spec: GraphSpec, lazy: Collection[str], steps: int, unreplicated: Collection[str] = ()
) -> PeerMemoryCost:
    """The cost of a plan.

    Args:
        plan: the plan of the graph.
        spec: its spec.
        lazy: tables whose untouched rows change too.
        steps: the number of steps from one set to the next.
        unreplicated: tables whose rows are each on their owner's host only.

    Raises:
        PlanError: when servers store a variable.
    """
    if plan.servers:
        raise PlanError(
            "CheckPointConfig.memory_steps copies what workers hold, but this plan keeps variables on servers. Use "
            'run_option="MPI" with synchronous training, or write checkpoints to a folder (CheckPointConfig.ckpt_dir).'
        )
    hosts = sum(workers > 0 for workers in plan.hosts)
    sent = tables = replicated_bytes = 0
    for variable in spec.variables:
        planned, row_count = plan.variable(variable.name), max(variable.rows, 1)
        whole = variable.value_bytes + variable.slots_bytes
        row_bytes = whole // row_count
        if not planned.owner_rows:
            replicated_bytes += whole
            continue
        owned = max(planned.owner_rows)
        touched = owned
        if planned.touched_rows is not None and variable.name not in lazy:
            touched = min(owned, planned.touched_rows * plan.accumulate_steps * steps)
        has_base = variable.name not in lazy
        of_set = touched * row_bytes + (touched * _NUMBER_BYTES if has_base else 0)
        is_sent = hosts > 1 and variable.name not in unreplicated
        sent += of_set if is_sent else 0
        of_owner = _SETS * of_set + (owned * row_bytes if has_base else 0)
        tables += of_owner * (2 if is_sent else 1)
    return PeerMemoryCost(sent, max(plan.hosts) * tables + _SETS * replicated_bytes)
