"""Describes the machines of a job: hosts, their workers, GPUs and links, and how to reach them.

All are frozen values without connections. Ranks follow from them alone: workers are numbered host by host, in the order
of the hosts, so all processes with the same Cluster agree on the placement of ranks.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from parallax.base.errors import ConfigError

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
"""The names by which every machine knows itself; as hosts they are the same."""

CPU_WORKERS = 2
"""The default number of workers on a machine without GPU: the fewest that exchange something."""

GPU_FOLDER = Path("/proc/driver/nvidia/gpus")
"""NVIDIA's driver lists a folder per GPU here; no folder, no GPU."""

# Letters, digits, `_`, `-` and `.`; never a leading `-`, which ssh and mpirun would parse as an option.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")

# mpirun splits the command that reaches a host at blanks, and at colons into alternatives.
_SSH_WORD = re.compile(r"[^\s:-][^\s:]*")
_SSH_WORDS = re.compile(r"[^\s:-][^:\n]*")

# Digits and dots only: an IP address or a mistyped one, which a resolver may accept as another address.
_NUMERIC = re.compile(r"[0-9.]*")


class FieldError(ConfigError):
    """A field of a value is invalid. `field` names it, so that a parser can report its line."""

    def __init__(self, field: str, expected: str, received: str) -> None:
        super().__init__(f"{field}: expected {expected}, got {received}")
        self.field = field
        self.expected = expected
        self.received = received


@dataclass(frozen=True, slots=True)
class Host:
    """One machine.

    Attributes:
        address: a name or an IP address; IPv6 without brackets.
        num_workers: workers on it. 0 for a host of servers only.
        gpus: the GPU of each worker, by local rank; empty when the workers use none.
        num_servers: servers on it; None leaves the number to the plan.
        link_bytes_per_s: the rate of its network link in each direction; None if unknown.
        memory_bytes: the total for its processes; None if unknown.
        island: the name of its island; None in a job without islands.
    """

    address: str
    num_workers: int
    gpus: tuple[int, ...] = ()
    num_servers: int | None = None
    link_bytes_per_s: int | None = None
    memory_bytes: int | None = None
    island: str | None = None

    def __post_init__(self) -> None:
        if self.island is not None and not _NAME.fullmatch(self.island):
            raise FieldError("island", "a name of letters, digits, dots, dashes and underscores", repr(self.island))
        if not _is_ip(self.address) and (_NUMERIC.fullmatch(self.address) or not _NAME.fullmatch(self.address)):
            raise FieldError("address", "a host name or an IP address", repr(self.address))
        if any(gpu < 0 for gpu in self.gpus) or len(frozenset(self.gpus)) < len(self.gpus):
            raise FieldError("gpus", "GPU numbers from 0, each once", str(list(self.gpus)))
        if self.gpus and self.num_workers != len(self.gpus):
            raise FieldError("num_workers", f"one worker for each of {len(self.gpus)} GPUs", str(self.num_workers))
        if self.num_servers is not None and self.num_servers < 0:
            raise FieldError("num_servers", "0 or more", str(self.num_servers))
        if self.num_workers < 0 or (self.num_workers == 0 and not self.num_servers):
            raise FieldError("num_workers", "1 or more, or 0 on a host with servers", str(self.num_workers))
        if self.link_bytes_per_s is not None and self.link_bytes_per_s <= 0:
            raise FieldError("link_bytes_per_s", "more than 0 bytes per second", str(self.link_bytes_per_s))
        if self.memory_bytes is not None and self.memory_bytes <= 0:
            raise FieldError("memory_bytes", "more than 0 bytes", str(self.memory_bytes))

    @property
    def is_loopback(self) -> bool:
        """Whether the address is the local machine on every machine."""
        return _machine(self.address) == "localhost" or (
            _is_ip(self.address) and ipaddress.ip_address(self.address).is_loopback
        )

    @property
    def is_this_machine(self) -> bool:
        """Whether the address is a loopback address or this machine's own name, in full or its first label."""
        local_name = socket.gethostname().lower()
        return self.is_loopback or _machine(self.address) in (local_name, local_name.split(".")[0])


@dataclass(frozen=True, slots=True)
class Ssh:
    """Settings of ssh; None leaves a setting to ssh and its own configuration.

    Attributes:
        user: the login name.
        port: the port of ssh on every host.
        key: path of the private key, as it was written.
        agent: a command that is used in place of ssh: it gets the host's name and a shell command as arguments.
    """

    user: str | None = None
    port: int | None = None
    key: str | None = None
    agent: str | None = None

    def __post_init__(self) -> None:
        if self.user is not None and not re.fullmatch(r"[^\s-]\S*", self.user):
            raise FieldError("user", "a login name", repr(self.user))
        if self.port is not None and not 1 <= self.port <= 65535:
            raise FieldError("port", "a port from 1 to 65535", str(self.port))
        if self.key is not None and not _SSH_WORD.fullmatch(self.key):
            raise FieldError("key", "the path of a private key, without blanks and colons", repr(self.key))
        if self.agent is not None and not _SSH_WORDS.fullmatch(self.agent):
            raise FieldError("agent", "a command without colons", repr(self.agent))
        if self.agent is not None and (self.user, self.port, self.key) != (None, None, None):
            raise FieldError("agent", "an agent without user, port and key, which are for ssh", "both")

    @property
    def command(self) -> str:
        """The command before the host's name; ssh must not prompt."""
        if self.agent is not None:
            return self.agent
        words = ["ssh", "-o", "BatchMode=yes"]
        for flag, value in (("-p", self.port), ("-l", self.user), ("-i", self.key)):
            words += [flag, str(value)] if value is not None else []
        return " ".join(words)


@dataclass(frozen=True, slots=True)
class Network:
    """The network of the job: one interface name, or one subnet (`10.0.0.0/16`); neither leaves the choice to MPI."""

    interface: str | None = None
    subnet: str | None = None

    def __post_init__(self) -> None:
        if self.interface is not None and self.subnet is not None:
            raise FieldError("subnet", "interface or subnet, not both", f"{self.interface!r} and {self.subnet!r}")
        if self.interface is not None and not _NAME.fullmatch(self.interface):
            raise FieldError("interface", "the name of one network interface", repr(self.interface))
        if self.subnet is not None and not _is_subnet(self.subnet):
            raise FieldError("subnet", "a network such as 10.0.0.0/16 with host bits zero", repr(self.subnet))


@dataclass(frozen=True, slots=True)
class Cluster:
    """All machines of a job.

    Hosts may have different numbers of workers. Rank r is the r-th worker, counted host by host, and within a host by
    local rank; in the mean over the global batch every worker, not every host, has the same weight.

    Attributes:
        hosts: in the order in which ranks are counted; rank 0 is on the first that has workers. No machine may appear
            twice; two names of one machine are detected for localhost, 127.0.0.1 and ::1 only.
        ssh: settings for reaching them.
        mpirun_options: words added to the mpirun command.
        network: of the job's traffic.
        ports: first and last port that TensorFlow servers may listen on; None for any.
    """

    hosts: tuple[Host, ...]
    ssh: Ssh = Ssh()
    mpirun_options: tuple[str, ...] = ()
    network: Network = Network()
    ports: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if not self.hosts:
            raise FieldError("hosts", "at least one host", "none")
        machines: list[str] = []
        for position, host in enumerate(self.hosts):
            if (machine := _machine(host.address)) in machines:
                first = self.hosts[machines.index(machine)].address
                received = f"{host.address} twice" if host.address == first else f"{host.address} after {first}"
                raise FieldError(f"hosts[{position}]", "each host once, with all its GPUs", received)
            machines.append(machine)
        self._check_islands()
        if self.ports is not None and not 1 <= self.ports[0] <= self.ports[1] <= 65535:
            raise FieldError(
                "ports", "two ports from 1 to 65535, the smaller first", f"{self.ports[0]}-{self.ports[1]}"
            )
        if not self.num_workers:
            raise FieldError("hosts", "a worker on at least one host", "hosts for servers only")

    def _check_islands(self) -> None:
        """Requires islands to be consecutive hosts with equally many workers, if any host has one."""
        numbers: dict[str, int] = {}
        last = None
        for position, host in enumerate(self.hosts if any(host.island for host in self.hosts) else ()):
            if host.island is None:
                raise FieldError(f"hosts[{position}]", "the island of each host, or of none", f"{host.address} without")
            if host.island in numbers and host.island != last:
                raise FieldError(
                    f"hosts[{position}]",
                    "the hosts of an island one after the other",
                    f"{host.address} of {host.island!r} after one of {last!r}",
                )
            last = host.island
            numbers[last] = numbers.get(last, 0) + host.num_workers
        if len({*numbers.values()}) > 1:
            found = ", ".join(f"{number} in {name!r}" for name, number in numbers.items())
            raise FieldError("hosts", "equally many workers in each island", found)

    @property
    def num_islands(self) -> int:
        """The number of islands that its hosts name; 1 for none."""
        return len({host.island for host in self.hosts})

    @property
    def num_workers(self) -> int:
        """The number of workers on all hosts."""
        return sum(host.num_workers for host in self.hosts)

    @property
    def leader(self) -> Host:
        """The host of worker 0."""
        return next(host for host in self.hosts if host.num_workers)

    @property
    def has_single_worker_hosts(self) -> bool:
        """Whether no host has more than one worker."""
        return max(host.num_workers for host in self.hosts) == 1

    @property
    def host_by_rank(self) -> tuple[Host, ...]:
        """The host of every worker."""
        return tuple(host for host in self.hosts for _ in range(host.num_workers))

    def host_of_worker(self, rank: int) -> Host:
        """The host of one worker.

        Raises:
            IndexError: there is no such rank.
        """
        left = rank
        for host in self.hosts:
            if 0 <= left < host.num_workers:
                return host
            left -= host.num_workers
        raise IndexError(f"rank must be between 0 and {self.num_workers - 1}, got {rank}")

    def restrict_to(self, addresses: Collection[str]) -> Cluster:
        """The cluster restricted to some of its hosts."""
        return replace(self, hosts=tuple(host for host in self.hosts if host.address in addresses))

    @property
    def is_local(self) -> bool:
        """Whether all hosts are this machine: no ssh is needed to start the job."""
        return all(host.is_this_machine for host in self.hosts)


def local_cluster(
    num_workers: int | None = None, visible_devices: str | None = None, gpu_folder: Path = GPU_FOLDER
) -> Cluster:
    """The cluster without a resource file: this machine.

    Args:
        num_workers: None for a worker per GPU, or CPU_WORKERS if there is none.
        visible_devices: the value of CUDA_VISIBLE_DEVICES; None if it is not set, and all GPUs are visible.
        gpu_folder: where the driver lists GPUs.

    Raises:
        FieldError: `num_workers` is not positive or more than the GPUs, or `visible_devices` has no numbers.
    """
    gpus = _all_gpus(gpu_folder) if visible_devices is None else _visible_gpus(visible_devices)
    if num_workers is None:
        num_workers = len(gpus) or CPU_WORKERS
    if gpus and num_workers > len(gpus):
        remedy = "an empty CUDA_VISIBLE_DEVICES runs them without"
        raise FieldError("num_workers", f"at most one worker for each of {len(gpus)} GPUs ({remedy})", str(num_workers))
    # A negative number uses no GPU either, so that Host names the number and not a slice of the GPUs.
    return Cluster((Host("localhost", num_workers, gpus[: max(num_workers, 0)]),))


def _all_gpus(folder: Path) -> tuple[int, ...]:
    return tuple(range(len(list(folder.iterdir())))) if folder.is_dir() else ()


def _visible_gpus(value: str) -> tuple[int, ...]:
    """The GPU numbers of CUDA_VISIBLE_DEVICES; as CUDA does, those before the first -1."""
    gpus: list[int] = []
    for word in value.split(",") if value.strip() else []:
        if word.strip() == "-1":
            break
        if not re.fullmatch(r"\s*[0-9]+\s*", word):
            raise FieldError("CUDA_VISIBLE_DEVICES", "GPU numbers like 0,1", repr(value))
        gpus.append(int(word))
    return tuple(gpus)


def _machine(address: str) -> str:
    """The canonical spelling of a machine, as far as its address determines it."""
    name = str(ipaddress.ip_address(address)) if _is_ip(address) else address.lower().removesuffix(".")
    return "localhost" if name in LOOPBACK_NAMES else name


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _is_subnet(text: str) -> bool:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        return False
    return "/" in text
