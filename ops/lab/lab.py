"""Emulated hosts: namespaces on this machine, joined by a bridge of their own.

Each host has its own network, process IDs, shared memory and name, so a process sees other hosts only through the
network. The bridge is in a namespace too: no interface of a lab is in the machine's own network, and no packet leaves
the lab. The hosts share the machine's files, except /etc/hosts, /dev/shm and /var/tmp, where TMPDIR
points. An agent (agent.py) replaces `ssh`: it asks the lab over a socket to run a command on a host, in an environment
as bare as a login's.

Every host depends on one process (init.py). The kernel kills it with the lab, and with it all processes of the host. So
a killed lab leaves only a folder in the directory for temporary files.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from ops.lab import links
from ops.lab.check import LinkSpeed, measure
from ops.lab.gate import Gate
from ops.lab.hosts import HERE, OF_A_HOST, EmulatedHost, Hosts
from ops.lab.limits import limited_memory
from parallax.runtime.supervisor.processes import tied_argv

_TOOLS = ("ip", "mount", "nsenter", "sh", "tc", "unshare")
_LIFTED_BYTES_PER_S = 10_000_000_000
"""More than the processors can move."""
_TRIAL = """
ip link add one type veth peer name other || { echo veth; exit 1; }
ip link add three type bridge || { echo bridge; exit 1; }
tc qdisc add dev one root tbf rate 1mbit burst 20000 limit 100000 || { echo tbf; exit 1; }
"""


class Lab(Hosts):
    """A cluster of emulated hosts; a context manager.

    Args:
        hosts: number of hosts; their names are host0, host1, ...
        rate_bytes_per_s: rate limit of each host's link, each way; None for no limit.
        host_rates: host -> rate limit, for hosts that differ.
        mtu: of the links.
        folder: an empty folder for the lab's files, which is kept; None makes one that is removed with the lab.
        memory_bytes: memory limit of each host's processes together; None for no limit.
        islands: the island of each host; each island has a bridge of its own. Empty for one bridge.
        between_bytes_per_s: rate limit of the link from an island to the first, each way.

    Raises:
        ValueError: a number is out of range, or a rate names an unknown host.
    """

    def __init__(
        self,
        hosts: int,
        rate_bytes_per_s: int | None = None,
        host_rates: Mapping[str, int | None] | None = None,
        mtu: int = links.MTU,
        folder: Path | None = None,
        memory_bytes: int | None = None,
        islands: Sequence[str] = (),
        between_bytes_per_s: int = _LIFTED_BYTES_PER_S,
    ) -> None:
        super().__init__(folder or Path(), 0, ())
        self.names = tuple(f"host{number}" for number in range(hosts))
        self._given_folder = folder
        self._rate_by_name = {name: rate_bytes_per_s for name in self.names} | dict(host_rates or {})
        self._mtu, self._memory_bytes = mtu, memory_bytes
        self._island_by_name = dict(zip(self.names, islands, strict=True)) if islands else {}
        self._between_bytes_per_s = between_bytes_per_s
        self._ends = contextlib.ExitStack()
        if not 1 <= hosts <= links.MOST_HOSTS:
            raise ValueError(f"A lab has 1 to {links.MOST_HOSTS} hosts; received {hosts}.")
        if unknown := [name for name in self._rate_by_name if name not in self.names]:
            raise ValueError(f"Rates must name hosts from {self.names[0]} to {self.names[-1]}; received {unknown[0]}.")
        for name, rate in self._rate_by_name.items():
            if rate is not None and rate <= 0:
                raise ValueError(f"A link's rate must be more than 0 bytes a second; received {rate} for {name}.")

    def __enter__(self) -> Lab:
        reason = why_not()
        if reason:
            raise RuntimeError(f"No lab can be made here: {reason}.")
        with contextlib.ExitStack() as ends:
            self.folder = self._given_folder or _temporary_folder(ends)
            addresses = {name: links.address(number) for number, name in enumerate(self.names)}
            own = "".join(f"{address} {name}\n" for name, address in addresses.items())
            (self.folder / "hosts").write_text(f"127.0.0.1 localhost\n::1 localhost\n{own}")
            self._bridge_pid = ends.enter_context(_namespace(self.folder, links.BRIDGE, ("--net",)))
            links.add_bridge(self._bridge_pid, self._mtu)
            first, *others = dict.fromkeys(self._island_by_name.values()) or [""]
            bridges = {first: links.BRIDGE} | {name: f"island-{number}" for number, name in enumerate(others)}
            for name in others:
                links.add_island(self._bridge_pid, bridges[name], self._between_bytes_per_s, self._mtu)
            for name, address in addresses.items():
                pid = ends.enter_context(_namespace(self.folder, name, (*OF_A_HOST, "--mount-proc")))
                rate = self._rate_by_name[name]
                bridge = bridges[self._island_by_name.get(name, first)]
                links.connect(pid, address, self._bridge_pid, _port(name), rate, self._mtu, bridge)
                limit = self._memory_bytes
                group = None if limit is None else ends.enter_context(limited_memory(name, limit))
                self._host_by_name[name] = EmulatedHost(name, address, pid, rate, limit, group)
            ends.enter_context(Gate(self.folder / "gate", self.argv_on))
            self._ends = ends.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    def lift_rates(self, are_lifted: bool) -> None:
        """Lifts the rate limits of all links, or restores them."""
        for host in self.hosts:
            if host.rate_bytes_per_s is not None:
                rate = _LIFTED_BYTES_PER_S if are_lifted else host.rate_bytes_per_s
                links.change_rate(host.pid, self._bridge_pid, _port(host.name), rate, self._mtu)

    def check(self) -> tuple[LinkSpeed, ...]:
        """Measures every link both ways, in a second or two for each host."""
        return measure(self, self._mtu)


def _port(host: str) -> str:
    """Returns the name of the bridge's end of a host's veth pair."""
    return f"to-{host}"


def why_not() -> str:
    """Returns why no lab can be made here; empty if one can."""
    if os.geteuid() != 0:
        return "only root can make network namespaces"
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} is missing (Debian: apt-get install iproute2 util-linux)"
    tried = subprocess.run(
        ["unshare", *OF_A_HOST, "--fork", "sh", "-c", _TRIAL], capture_output=True, text=True, check=False
    )
    if not tried.returncode:
        return ""
    words = tried.stderr.strip()
    return f"the kernel has no {tried.stdout.strip()} ({words})" if tried.stdout else f"no namespaces ({words})"


def _temporary_folder(ends: contextlib.ExitStack) -> Path:
    folder = Path(tempfile.mkdtemp(prefix=f"parallax-lab-{os.getpid()}-"))
    ends.callback(shutil.rmtree, folder, ignore_errors=True)
    return folder


@contextlib.contextmanager
def _namespace(folder: Path, name: str, kinds: tuple[str, ...]) -> Iterator[int]:
    """Makes namespaces for the `with` block; yields the PID of their first process."""
    unshare = str(shutil.which("unshare"))
    argv = [unshare, *kinds, "--fork", "--kill-child", sys.executable, "-I", "-S", str(HERE / "init.py"), name]
    process = subprocess.Popen(
        tied_argv(sys.executable, [*argv, str(folder / "hosts")], os.getpid(), signal.SIGKILL),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        if process.stdout is None or process.stdout.readline() != b"ready\n":
            raise RuntimeError(f"The namespaces of {name} could not be made: see above.")
        yield psutil.Process(process.pid).children()[0].pid
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.read()  # until the last process of the namespaces is gone
            process.stdout.close()
