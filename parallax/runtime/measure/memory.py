"""Reads the memory of this process and of the machine, as Linux reports it, and predicts that of a plan."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import tensorflow as tf

from parallax.analysis.graph_to_plan import AnalysedGraph, memory_of
from parallax.analysis.whatif.memory import FixedMemory, HostMemory
from parallax.base.types import NodeDef
from parallax.cluster.machines import Cluster
from parallax.graph.view import VARIABLES
from parallax.plans.memory import MACHINE, RESOURCE_FILE, MemoryPlan
from parallax.plans.plan import Plan
from parallax.runtime.checkpoint.format.stored_tensors import CHUNK_BYTES
from parallax.settings.config import Config

_STATUS, _CLEAR, _MACHINE = Path("/proc/self/status"), Path("/proc/self/clear_refs"), Path("/proc/meminfo")
_RESET_PEAK = "5"  # proc(5): sets the peak to the current value
_LIMITS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"), Path("/sys/fs/cgroup/memory/memory.usage_in_bytes")),
)
_OF_A_JOB = 60 << 20
"""Memory of MPI, Horovod and a session, which a worker needs in addition to building and reading a graph."""


def reset_peak() -> bool:
    """Resets the recorded peak; returns whether the kernel permits it."""
    try:
        _CLEAR.write_text(_RESET_PEAK, encoding="ascii")
    except OSError:
        return False
    return True


def peak_bytes() -> int:
    """The peak memory of this process since `reset_peak`."""
    return _kilobytes(_STATUS, "VmHWM")


def resident_bytes() -> int:
    """The current memory of this process."""
    return _kilobytes(_STATUS, "VmRSS")


def launcher_bytes() -> int:
    """The launcher's memory while a job runs, estimated from a process that has built and read the graph too."""
    return resident_bytes()


def base_bytes() -> int:
    """A job process's memory before its first variable, estimated from a process that has built and read the graph."""
    return resident_bytes() + _OF_A_JOB


def machine_bytes() -> int:
    """The memory of this machine, or the limit of its container."""
    limits = [
        int(limit.read_text()) for limit, _ in _LIMITS if limit.is_file() and limit.read_text().strip().isdecimal()
    ]
    return min(_kilobytes(_MACHINE, "MemTotal"), *limits)


def free_bytes() -> int:
    """The memory that this process may still allocate: of the machine, and within a container's limit."""
    free = [_kilobytes(_MACHINE, "MemAvailable")]
    for limit, used in _LIMITS:
        if limit.is_file() and used.is_file() and limit.read_text().strip().isdecimal():
            free.append(int(limit.read_text()) - int(used.read_text()))
    return max(0, min(free))


def variable_bytes(nodes: Iterable[NodeDef]) -> int:
    """Bytes of the variables among a graph's nodes that this process stores: those that are not on servers."""
    total = 0
    for node in nodes:
        if node.op in VARIABLES and "/job:ps" not in node.device:
            shape = tf.TensorShape(node.attr["shape"].shape)
            total += (shape.num_elements() or 0) * tf.dtypes.as_dtype(node.attr["dtype"].type).size
    return total


def _kilobytes(file: Path, name: str) -> int:
    match = re.search(rf"^{name}:\s+(\d+) kB", file.read_text(encoding="ascii", errors="replace"), re.MULTILINE)
    if match is None:
        raise OSError(f"{file} must contain {name}, but does not.")
    return int(match[1]) * 1024


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
