"""Defines a job: its program, its hosts and its ranks."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path

from parallax.base.errors import ConfigError
from parallax.base.types import Buffer
from parallax.cluster.machines import Cluster, local_cluster
from parallax.cluster.resource_file import parse_resource_file
from parallax.plans.plan import Layout
from parallax.runtime.supervisor.control import CONTROL_FD, HOST_ADDRESS, PREEMPTION_FD
from parallax.runtime.supervisor.limits import LIMITS, Limits
from parallax.runtime.supervisor.preload import LISTEN_ADDRESS, LISTEN_PORT, SECRET
from parallax.runtime.supervisor.processes import JOB_ID
from parallax.settings.config import HOST_TIMEOUT_S, STALL_TIMEOUT_S
from parallax.settings.environment import (
    EQUAL_HASHES,
    FRAMEWORK_QUIET,
    HASH_SEED,
    MIN_LOG_LEVEL,
    Settings,
    as_variables,
    python_path_with,
    visible_gpus,
    with_defaults,
)

# Open MPI's libopen-pal and TensorFlow's libtensorflow_framework both export hwloc's functions. A call that is bound
# late, at MPI_Finalize, may reach TensorFlow's copy and crash; bound when the library is loaded, it cannot.
BIND_NOW = "LD_BIND_NOW"

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HOST = re.compile(r"[A-Za-z0-9.-]+")
# Set by the launch itself.
_RESERVED = (*(BIND_NOW, CONTROL_FD, HOST_ADDRESS, JOB_ID, LISTEN_ADDRESS, LISTEN_PORT, SECRET), PREEMPTION_FD)


@dataclass(frozen=True, slots=True)
class Job:
    """A job to launch.

    Ranks 0 to W-1 are the workers, counted host by host; the servers follow in the order of `servers`.

    Attributes:
        program: arguments of the Python interpreter that every worker runs: `("train.py", "--epochs", "3")`,
            `("-m", "package.module")`.
        cluster: the hosts, how to reach them, and the workers on each.
        servers: the host number of each server, ascending; empty for a job without servers.
        environment: variables exported to every rank, as (name, value), in addition to those of the launcher.
        stall_timeout_s: how long a rank may wait in one run for ranks that do not arrive; infinite for ever.
        input: the pieces that rank 0 reads on its standard input, in order and by their lengths: the end of file comes
            when the job has ended (job_input.py), at once if there are none. The other ranks read nothing.
        output_folder: folder of the files with each rank's output, if any.
        framework_log: the level from which TensorFlow's startup messages are printed too; the files have all of them.
        limits: the timeout of each kind of silence.
        host_timeout_s: how long a host may take to respond before anything is started.
        preemption_grace_s: how long the workers have to save when the launcher receives SIGTERM; None when they cannot.
        forks_workers: whether the workers of a host are forked from one process that has imported TensorFlow.
    """

    program: tuple[str, ...]
    cluster: Cluster
    servers: tuple[int, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    stall_timeout_s: float = STALL_TIMEOUT_S
    input: tuple[Buffer, ...] = field(default=(), repr=False)
    output_folder: Path | None = None
    framework_log: int = FRAMEWORK_QUIET
    limits: Limits = LIMITS
    host_timeout_s: float = HOST_TIMEOUT_S
    preemption_grace_s: float | None = None
    forks_workers: bool = True

    def __post_init__(self) -> None:
        if not self.program or not all(self.program[:1]):
            raise ConfigError("A job needs a program, but its argv is empty. Name a Python file, or -m and a module.")
        if math.isnan(self.stall_timeout_s) or self.stall_timeout_s <= 0:
            raise ConfigError(
                f"The stall timeout must be above 0 s, got {self.stall_timeout_s}. To wait forever, set it to `inf`."
            )
        _check_environment(self.environment)
        for text in (*self.program, *(value for _, value in self.environment)):
            if "\0" in text:
                raise ConfigError(f"Arguments and variables of a job cannot contain a zero byte: {text!r}.")
        if ":" in self.program:
            raise ConfigError("No argument of a script may be just `:`, at which mpirun begins another program.")
        _check_hosts(self.cluster)
        _check_servers(self.servers, self.cluster)

    @property
    def num_workers(self) -> int:
        """The number of workers on all hosts."""
        return self.cluster.num_workers

    @property
    def num_ranks(self) -> int:
        """The number of workers and servers on all hosts."""
        return self.num_workers + len(self.servers)

    def host_of(self, rank: int) -> str:
        """The address of a rank's host, as in the resource file."""
        if rank < self.num_workers:
            return self.cluster.host_of_worker(rank).address
        return self.cluster.hosts[self.servers[rank - self.num_workers]].address

    def name_of(self, rank: int) -> str:
        """A rank's name in messages: `rank 1`, `rank 1 on host a` where there are several, `server 0 on host b`."""
        if rank >= self.num_workers:
            return f"server {rank - self.num_workers} on host {self.host_of(rank)}"
        return f"rank {rank} on host {self.host_of(rank)}" if len(self.cluster.hosts) > 1 else f"rank {rank}"

    @property
    def rank_names(self) -> tuple[str, ...]:
        """A name for each rank, for files."""
        workers = [f"worker-{rank}" for rank in range(self.num_workers)]
        return (*workers, *(f"server-{number}" for number in range(len(self.servers))))

    def label_of(self, rank: int) -> str:
        """The prefix of the lines that a rank writes."""
        return str(rank) if rank < self.num_workers else f"server {rank - self.num_workers}"


def cluster_named(resource: str | None, workers: int | None) -> Cluster:
    """The machines that a command names: those of a resource file, or this one.

    Raises:
        ConfigError: the file, or the number of workers, is invalid.
    """
    if resource is None:
        return local_cluster(workers, visible_gpus())
    return parse_resource_file(resource, local_cluster(None, visible_gpus()).hosts[0])


def servers_by_host(cluster: Cluster) -> list[int]:
    """The number of servers that may be started on each host: one, or as many as the resource file says."""
    return [1 if host.num_servers is None else host.num_servers for host in cluster.hosts]


def layout_of(cluster: Cluster) -> Layout:
    """The layout for which plans are made: each host's workers, and one server or as many as the resource file says."""
    servers = tuple(host for host, number in enumerate(servers_by_host(cluster)) for _ in range(number))
    return Layout(tuple(host.num_workers for host in cluster.hosts), servers, cluster.num_islands)


def worker_defaults(cluster: Cluster, servers: tuple[int, ...]) -> dict[str, str]:
    """Default variables of a job's workers, where the environment does not set them."""
    return {
        # The longest sleep of a waiting rank: messages through shared memory, within a host, wake no process. Any value
        # but 0 also makes Horovod's thread sleep until there is something to do.
        "PARALLAX_IDLE_US": "20000" if cluster.has_single_worker_hosts else "50",
        # With different hash seeds the workers would iterate over sets in different orders, and build different graphs.
        HASH_SEED: EQUAL_HASHES,
        # Every worker would repeat TensorFlow's startup messages, and with servers a warning at the end of runs.
        MIN_LOG_LEVEL: "2" if servers else "1",
        # While there is something to do, Horovod's thread polls all workers for ready tensors at this interval (in ms).
        "HOROVOD_CYCLE_TIME": "1",
        # By default glibc returns memory to the kernel and requests it again in each step; the kernel then zeroes every
        # page.
        "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
        "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
    }


def worker_variables(mine: Settings, cluster: Cluster, servers: tuple[int, ...]) -> tuple[tuple[str, str], ...]:
    """The variables of a job's processes.

    Args:
        mine: the workers' settings.
        cluster: the machines.
        servers: the host number of each server.
    """
    path = python_path_with(Path(__file__).resolve().parents[3])
    return (*as_variables(mine).items(), *with_defaults(worker_defaults(cluster, servers)), ("PYTHONPATH", path))


def _check_hosts(cluster: Cluster) -> None:
    odd = next((host.address for host in cluster.hosts if not _HOST.fullmatch(host.address)), None)
    if odd is not None and not cluster.is_local:
        raise ConfigError(
            f"mpirun accepts only host names of letters, digits, dots and hyphens, and IPv4 addresses, got {odd!r}. "
            "Give the host such a name, in DNS or /etc/hosts, and use it in the resource file."
        )


def _check_servers(servers: tuple[int, ...], cluster: Cluster) -> None:
    if any(not 0 <= host < len(cluster.hosts) for host in servers) or list(servers) != sorted(servers):
        raise ConfigError(f"Servers must name hosts from 0 to {len(cluster.hosts) - 1}, ascending, not {servers}.")
    loopback = next((host.address for host in cluster.hosts if host.is_loopback), None)
    if servers and loopback is not None and not cluster.is_local:
        raise ConfigError(
            f"In a job with servers every host must be reachable from the others, but {loopback} means a different "
            "machine on each. Use this machine's own name or address in the resource file."
        )


def _check_environment(environment: tuple[tuple[str, str], ...]) -> None:
    seen: list[str] = []
    for name, _ in environment:
        if not _NAME.fullmatch(name):
            raise ConfigError(f"{name!r} is no name of an environment variable: letters, digits and _ only.")
        if name in _RESERVED:
            raise ConfigError(f"The launch itself sets {name}: leave it out of the job's environment.")
        if name in seen:
            raise ConfigError(f"The job's environment has {name} twice: leave one out.")
        seen.append(name)
