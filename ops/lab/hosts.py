"""The hosts of a running emulated cluster, whichever process keeps it up: runs commands, reads byte counters."""

from __future__ import annotations

import contextlib
import hashlib
import socket
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ops.lab import links
from ops.lab.init import OWN_FOLDERS
from ops.lab.limits import JOINED
from ops.lab.rates import mbit

HERE = Path(__file__).resolve().parent
OF_A_HOST = ("--net", "--uts", "--ipc", "--mount", "--pid")
_TEMPORARY = OWN_FOLDERS[1]  # Open MPI names its files there by host only, and all labs have the same host names

_LISTEN = "0A"  # state LISTEN in /proc/net/tcp


@dataclass(frozen=True, slots=True)
class Listening:
    """A TCP port on which a process of a host listens; `address` is numeric, and never an IPv4-mapped one of IPv6."""

    address: str
    port: int


@dataclass(frozen=True, slots=True)
class EmulatedHost:
    """A running host.

    Args:
        name: host0, host1, ...
        address: numeric IP address.
        pid: of its first process, in the machine's PID namespace.
        rate_bytes_per_s: rate limit of its link, each way; None for no limit.
        memory_bytes: memory limit of all its processes together; None for no limit.
        group: the file through which processes join its control group; None without a memory limit.
    """

    name: str
    address: str
    pid: int
    rate_bytes_per_s: int | None
    memory_bytes: int | None = None
    group: Path | None = None


class Hosts:
    """A running lab: its hosts, the process that holds the bridge's namespace, and the folder of its files.

    Attributes:
        folder: shared by all hosts; removed with the lab.
    """

    def __init__(self, folder: Path, bridge_pid: int, hosts: Iterable[EmulatedHost]) -> None:
        self.folder = folder
        self._bridge_pid = bridge_pid
        self._host_by_name = {host.name: host for host in hosts}

    @property
    def hosts(self) -> tuple[EmulatedHost, ...]:
        """All hosts, in order."""
        return tuple(self._host_by_name.values())

    @property
    def bridge_pid(self) -> int:
        """PID of the process that holds the bridge's namespace."""
        return self._bridge_pid

    @property
    def agent(self) -> str:
        """The command that replaces ssh."""
        return f"{sys.executable} -I -S {HERE / 'agent.py'} {self.folder / 'gate'}"

    def address(self, host: str) -> str:
        """Returns the IP address of a host."""
        return self._host_by_name[host].address

    def argv_on(self, host: str, argv: Sequence[str], folder: str | Path | None = None) -> list[str]:
        """Returns the command that runs `argv` on a host, by name or address; KeyError for an unknown host.

        The working directory is `folder`, by default this process's.
        """
        name = next((one.name for one in self.hosts if one.address == host), host)
        one = self._host_by_name[name]
        joined = [] if one.group is None else ["sh", "-c", JOINED, str(one.group)]
        nsenter = ["nsenter", "-t", str(one.pid), *OF_A_HOST, f"--wd={folder or Path.cwd()}", "--"]
        return [*joined, *nsenter, "env", f"TMPDIR={_TEMPORARY}", *argv]

    def argv_on_bridge(self, argv: Sequence[str]) -> list[str]:
        """Returns the command that runs `argv` at the bridge, with no rate limit between it and the links."""
        return ["nsenter", "-t", str(self._bridge_pid), "--net", "--", *argv]

    def start_on(self, host: str, argv: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        """Starts a command on a host; `options` are those of `subprocess.Popen`."""
        return subprocess.Popen(self.argv_on(host, argv, options.get("cwd")), **options)

    def run_on(self, host: str, argv: Sequence[str], **options: Any) -> subprocess.CompletedProcess[Any]:
        """Runs a command on a host; `options` are those of `subprocess.run`."""
        return subprocess.run(self.argv_on(host, argv), check=False, **options)

    def counters(self) -> dict[str, tuple[int, int]]:
        """Returns the bytes that each host has received and sent so far, from its interface's counters."""
        return {host.name: _counted(host.pid) for host in self.hosts}

    def resource_file(
        self,
        workers: int | Sequence[int],
        servers: Sequence[int | None] = (),
        islands: Sequence[str] = (),
        **more: str,
    ) -> Path:
        """Writes a resource file that lists all hosts. Equal texts share one file.

        Args:
            workers: workers on every host, or one number for each host.
            servers: servers on each host; if empty, the plan decides.
            islands: the island of each host; empty for none.
            more: further top-level keys, as YAML: `ports="20000-20100"`.
        """
        numbers = [workers] * len(self.hosts) if isinstance(workers, int) else list(workers)
        lines = ["hosts:"]
        for position, (host, number) in enumerate(zip(self.hosts, numbers, strict=True)):
            lines += [f"  - address: {host.name}", f"    workers: {number}"]
            if servers and servers[position] is not None:
                lines.append(f"    servers: {servers[position]}")
            if islands:
                lines.append(f"    island: {islands[position]}")
            if host.rate_bytes_per_s is not None:
                lines.append(f"    bandwidth: {mbit(host.rate_bytes_per_s)}")
            if host.memory_bytes is not None:
                lines.append(f"    memory: {host.memory_bytes}B")
        lines += ["ssh:", f'  agent: "{self.agent}"', f"network: {{subnet: {links.SUBNET}}}"]
        lines += [f"{key}: {value}" for key, value in more.items()]
        text = "\n".join(lines) + "\n"
        file = self.folder / f"resource-{hashlib.sha256(text.encode()).hexdigest()[:8]}.yaml"
        file.write_text(text, encoding="utf-8")
        return file

    def own_files(self, host: str) -> list[Path]:
        """Returns the files in a host's private folders, as paths that this process can open."""
        root = Path(f"/proc/{self._host_by_name[host].pid}/root")
        return sorted(file for folder in OWN_FOLDERS for file in (root / folder.lstrip("/")).iterdir())

    def processes(self, host: str) -> dict[int, str]:
        """Returns the processes on a host, without zombies: PID outside the lab -> command line."""
        first = self._host_by_name[host].pid
        own = Path(f"/proc/{first}/ns/pid").readlink()
        found = {}
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit() or int(folder.name) == first:
                continue
            with contextlib.suppress(OSError):
                words = (folder / "cmdline").read_bytes()
                if words and (folder / "ns/pid").readlink() == own:
                    found[int(folder.name)] = words.replace(b"\0", b" ").decode(errors="replace").strip()
        return dict(sorted(found.items()))

    def listening(self, host: str) -> tuple[Listening, ...]:
        """Returns the TCP ports on which processes of a host listen."""
        pid = self._host_by_name[host].pid
        found = []
        for kind in ("tcp", "tcp6"):
            for line in Path(f"/proc/{pid}/net/{kind}").read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == _LISTEN:
                    address, port = words[1].split(":")
                    found.append(Listening(in_digits(address), int(port, 16)))
        return tuple(sorted(set(found), key=lambda one: (one.port, one.address)))


def _counted(pid: int) -> tuple[int, int]:
    for line in Path(f"/proc/{pid}/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "eth0":
            words = numbers.split()
            return int(words[0]), int(words[8])
    raise RuntimeError("A host has lost its interface.")


def in_digits(text: str) -> str:
    """Converts an address of /proc/net/tcp, in which each four bytes are in host byte order, to numeric form."""
    data = b"".join(bytes.fromhex(text[i : i + 8])[::-1] for i in range(0, len(text), 8))
    if len(data) == 16 and data.startswith(bytes(10) + b"\xff\xff"):
        data = data[12:]
    return socket.inet_ntop(socket.AF_INET if len(data) == 4 else socket.AF_INET6, data)
