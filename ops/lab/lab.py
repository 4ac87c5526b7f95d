"""Emulated hosts: namespaces on this machine, joined by a bridge of their own.

Each host has its own network, process numbers, shared memory and name, so a process on one sees nothing of another but
its network. The bridge is in a namespace too: nothing of a lab is in the machine's own network, and no packet leaves.
The hosts share the machine's files, but for /etc/hosts and /dev/shm. What `ssh` is on real hosts is here an agent
(agent.py), which asks the lab over a socket to run a command on a host, with an environment as bare as a login's.

Every host lives by one process (init.py), which the kernel ends with the lab, and with it all that runs there. So a lab
that is killed leaves a folder in the place for temporary files, and nothing else.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ops.lab import links
from ops.lab.gate import Gate
from parallax.runtime.processes import tied_argv

HERE = Path(__file__).resolve().parent
SUBNET = "10.77.0.0/24"

_TOOLS = ("ip", "mount", "nsenter", "tc", "unshare")
_OF_A_HOST = ("--net", "--uts", "--ipc", "--mount", "--pid")
_LISTEN = "0A"  # the state in /proc/net/tcp


@dataclass(frozen=True, slots=True)
class Listening:
    """A TCP port on which somebody on a host listens; `address` is in digits, an IPv4 one never in its mapped form."""

    address: str
    port: int


@dataclass(frozen=True, slots=True)
class _Host:
    name: str
    address: str
    pid: int  # of its first process, outside


class Lab:
    """A cluster of emulated hosts; a context manager.

    Args:
        hosts: how many; they are called host0, host1, ...
        rate_bytes_per_s: what each host's link carries each way; None for as much as the machine can.
        mtu: of the links' frames.
    """

    def __init__(self, hosts: int, rate_bytes_per_s: int | None = None, mtu: int = links.MTU) -> None:
        self.names = tuple(f"host{number}" for number in range(hosts))
        self.folder = Path()
        self._rate_bytes_per_s = rate_bytes_per_s
        self._mtu = mtu
        self._host_by_name: dict[str, _Host] = {}
        self._ends = contextlib.ExitStack()

    def __enter__(self) -> Lab:
        reason = why_not()
        if reason:
            raise RuntimeError(f"No lab can be made here: {reason}.")
        with contextlib.ExitStack() as ends:
            self.folder = Path(tempfile.mkdtemp(prefix=f"parallax-lab-{os.getpid()}-"))
            ends.callback(shutil.rmtree, self.folder, ignore_errors=True)
            addresses = {name: f"10.77.0.{number + 1}" for number, name in enumerate(self.names)}
            own = "".join(f"{address} {name}\n" for name, address in addresses.items())
            (self.folder / "hosts").write_text(f"127.0.0.1 localhost\n::1 localhost\n{own}")
            bridge = ends.enter_context(_namespace(self.folder, "bridge", ("--net",)))
            links.add_bridge(bridge, self._mtu)
            for name, address in addresses.items():
                pid = ends.enter_context(_namespace(self.folder, name, (*_OF_A_HOST, "--mount-proc")))
                self._host_by_name[name] = _Host(name, address, pid)
                links.connect(pid, f"{address}/24", bridge, f"to-{name}", self._rate_bytes_per_s, self._mtu)
            ends.enter_context(Gate(self.folder / "gate", self._argv))
            self._ends = ends.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    @property
    def agent(self) -> str:
        """The command that takes the place of ssh."""
        return f"{sys.executable} -I -S {HERE / 'agent.py'} {self.folder / 'gate'}"

    def address(self, host: str) -> str:
        """The IP address of a host."""
        return self._host_by_name[host].address

    def resource_file(self, workers: int | Sequence[int], servers: Sequence[int | None] = (), **more: str) -> Path:
        """Writes a resource file of all hosts.

        Args:
            workers: workers on every host, or on each.
            servers: servers on each host; empty leaves it to the plan.
            more: further keys of the top level, as YAML: `ports="20000-20100"`.
        """
        numbers = [workers] * len(self.names) if isinstance(workers, int) else list(workers)
        lines = ["hosts:"]
        for position, (name, number) in enumerate(zip(self.names, numbers, strict=True)):
            lines += [f"  - address: {name}", f"    workers: {number}"]
            if servers and servers[position] is not None:
                lines.append(f"    servers: {servers[position]}")
            if self._rate_bytes_per_s is not None:
                lines.append(f"    bandwidth: {8 * self._rate_bytes_per_s / 1e6:.3f}mbit")
        lines += ["ssh:", f'  agent: "{self.agent}"', f"network: {{subnet: {SUBNET}}}"]
        lines += [f"{key}: {value}" for key, value in more.items()]
        file = self.folder / f"resource-{len(list(self.folder.iterdir()))}.yaml"
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return file

    def start_on(self, host: str, argv: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        """Starts a command on a host; `options` are those of `subprocess.Popen`."""
        return subprocess.Popen(self._argv(host, list(argv)), **options)

    def run_on(self, host: str, argv: Sequence[str], **options: Any) -> subprocess.CompletedProcess[Any]:
        """Runs a command on a host; `options` are those of `subprocess.run`."""
        return subprocess.run(self._argv(host, list(argv)), check=False, **options)

    def counters(self) -> dict[str, tuple[int, int]]:
        """Bytes that each host has received and sent so far, as its interface counts them."""
        return {host.name: _counted(host.pid) for host in self._host_by_name.values()}

    def processes(self, host: str) -> dict[int, str]:
        """What runs on a host: number outside the lab -> command line. Dead ones are left out."""
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
        """The TCP ports on which somebody on a host listens."""
        pid = self._host_by_name[host].pid
        found = []
        for kind in ("tcp", "tcp6"):
            for line in Path(f"/proc/{pid}/net/{kind}").read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == _LISTEN:
                    address, port = words[1].split(":")
                    found.append(Listening(_address(address), int(port, 16)))
        return tuple(sorted(set(found), key=lambda one: (one.port, one.address)))

    def _argv(self, host: str, argv: list[str]) -> list[str]:
        """The command that runs `argv` on a host, which is called by its name or its address."""
        name = next((one.name for one in self._host_by_name.values() if one.address == host), host)
        pid = self._host_by_name[name].pid
        return ["nsenter", "-t", str(pid), *_OF_A_HOST, f"--wd={Path.cwd()}", "--", *argv]


def why_not() -> str:
    """Why no lab can be made here; empty when one can."""
    if os.geteuid() != 0:
        return "only root can make network namespaces"
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} is missing"
    tried = subprocess.run(["unshare", *_OF_A_HOST, "--fork", "true"], capture_output=True, text=True, check=False)
    return f"the kernel makes no namespaces ({tried.stderr.strip()})" if tried.returncode else ""


@contextlib.contextmanager
def _namespace(folder: Path, name: str, kinds: tuple[str, ...]) -> Iterator[int]:
    """Namespaces that live inside the `with` block; gives the number of their first process."""
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
        yield _child_of(process.pid)
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.read()  # until the last process of the namespaces is gone
            process.stdout.close()


def _child_of(pid: int) -> int:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                if int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == pid:
                    return int(folder.name)
    raise RuntimeError(f"Process {pid} has no child.")


def _counted(pid: int) -> tuple[int, int]:
    for line in Path(f"/proc/{pid}/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "eth0":
            words = numbers.split()
            return int(words[0]), int(words[8])
    raise RuntimeError("A host has lost its interface.")


def _address(text: str) -> str:
    """An address of /proc/net/tcp, where each group of four bytes is a number in the machine's order, in digits."""
    data = b"".join(bytes.fromhex(text[i : i + 8])[::-1] for i in range(0, len(text), 8))
    if len(data) == 16 and data.startswith(bytes(10) + b"\xff\xff"):
        data = data[12:]
    return socket.inet_ntop(socket.AF_INET if len(data) == 4 else socket.AF_INET6, data)
