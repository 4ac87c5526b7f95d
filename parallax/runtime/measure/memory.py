"""Reads the memory of this process and of the machine, as Linux reports it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import tensorflow as tf

from parallax.base.types import NodeDef
from parallax.graph.view import VARIABLES

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
