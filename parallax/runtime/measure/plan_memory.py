"""Predicts the memory of a plan on a job's hosts for `parallax plan --memory`, before anything is started.

The launcher's memory is taken from this process, which has built and read the graph too; a worker's base is a little
more.
"""

from __future__ import annotations

from parallax.analysis.graph_to_plan import AnalysedGraph, memory_of
from parallax.analysis.whatif.memory import FixedMemory, HostMemory
from parallax.cluster.machines import Cluster
from parallax.plans.memory import MACHINE, RESOURCE_FILE, MemoryPlan
from parallax.plans.plan import Plan
from parallax.runtime.checkpoint.format.stored_tensors import CHUNK_BYTES
from parallax.runtime.measure.memory import base_bytes, launcher_bytes, machine_bytes
from parallax.settings.config import Config


def planned_memory(
    analysed: AnalysedGraph, plan: Plan, cluster: Cluster, config: Config, synchronous: bool, examples: int
) -> MemoryPlan:
    """Predicts the memory of every process.

    Args:
        analysed: the graph.
        plan: its plan.
        cluster: the machines.
        config: the configuration of the plan.
        synchronous: whether every step uses the gradients of all workers.
        examples: of a worker's batch, if the graph leaves it open; 0 if unknown.
    """
    hosts = [
        HostMemory(host.address, host.memory_bytes or machine_bytes(), RESOURCE_FILE if host.memory_bytes else MACHINE)
        for host in cluster.hosts
    ]
    chunk_bytes = 0 if config.ckpt_config.ckpt_dir is None else CHUNK_BYTES
    launches_on = next((number for number, host in enumerate(cluster.hosts) if host.is_this_machine), None)
    fixed = FixedMemory(base_bytes(), chunk_bytes, launcher_bytes(), launches_on)
    return memory_of(analysed, plan, config, hosts, fixed, synchronous, examples)
