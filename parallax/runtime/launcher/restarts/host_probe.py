"""Finds the hosts that respond: a command runs there and connects back to this machine, as mpirun's daemon has to."""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from parallax.base.errors import LaunchError
from parallax.cluster.machines import Cluster, Host
from parallax.runtime.launcher.reach import argv_on

LIMIT_S = 8.0
_POLL_S = 0.1
_WORD_BYTES = 16
_ANYWHERE = "192.0.2.1"
"""An address that stands for any machine (RFC 5737)."""
_NO_ROUTE = (
    "Worker 0, on {host}, must reach the process that drives the workers, and no network leads from here to that host: "
    "{reason}. Give its address in the resource file, or run the script on a machine that reaches it."
)
# Runs on the other host, with the interpreter of the ranks: connects to an address, and sends a word.
_ANSWER = """
import socket, sys
address, port, seconds, word = sys.argv[1:]
with socket.create_connection((address, int(port)), float(seconds)) as back:
    back.sendall(word.encode())
"""


def probe_hosts(cluster: Cluster, limit_s: float = LIMIT_S) -> tuple[str, ...]:
    """The addresses of the hosts that respond within `limit_s`, in the order of the cluster; probed in parallel."""
    with ThreadPoolExecutor(len(cluster.hosts)) as pool:
        has_answered = list(
            pool.map(lambda host: host.is_this_machine or _answers(cluster, host, limit_s), cluster.hosts)
        )
    return tuple(host.address for host, there in zip(cluster.hosts, has_answered, strict=True) if there)


def _answers(cluster: Cluster, host: Host, limit_s: float) -> bool:
    try:
        local_address = find_local_address(host.address)
    except socket.gaierror:  # a name that only ssh's configuration knows: reaching the host must suffice
        with _start(cluster, host, ["true"]) as process:
            return _has_succeeded(process, limit_s)
    except OSError:  # no network leads there
        return False
    word = secrets.token_hex(_WORD_BYTES // 2)
    with socket.create_server(
        (local_address, 0), family=socket.AF_INET6 if ":" in local_address else socket.AF_INET
    ) as listener:
        listener.settimeout(_POLL_S)
        words = [local_address, str(listener.getsockname()[1]), str(limit_s), word]
        with _start(cluster, host, [sys.executable, "-I", "-S", "-c", _ANSWER, *words]) as process:
            return _has_received(listener, word, process, limit_s)


def find_local_address(other: str) -> str:
    """The address of this machine on the route to another one; nothing is sent.

    Raises:
        OSError: its name is unknown, or no network leads there.
    """
    family, _, _, _, place = socket.getaddrinfo(other, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe_socket:
        probe_socket.connect(place)
        return str(probe_socket.getsockname()[0])


def driver_address(cluster: Cluster, host: Host) -> str:
    """The address of this machine at which a host can reach this process; nothing is sent.

    The host's name may be one that only ssh's configuration knows. If that has no route either, it is the address on
    the default route.

    Raises:
        LaunchError: no network leads to the host.
    """
    names = [host.address, _configured_name(cluster, host), _ANYWHERE]
    error: OSError | None = None
    for name in filter(None, names):
        try:
            return find_local_address(name)
        except OSError as found:
            error = error or found
    raise LaunchError(_NO_ROUTE.format(host=host.address, reason=error)) from error


def _configured_name(cluster: Cluster, host: Host) -> str:
    """The name or address that ssh's configuration substitutes for a host's name; empty if there is none."""
    if cluster.ssh.agent is not None:
        return ""
    words = [*shlex.split(cluster.ssh.command), "-G", host.address]
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    fields = (line.partition(" ") for line in done.stdout.splitlines())
    return next((value for name, _, value in fields if name == "hostname"), "")


@contextlib.contextmanager
def _start(cluster: Cluster, host: Host, words: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Context of a command on a host; the command and all processes that it started here are ended at exit."""
    process = subprocess.Popen(
        argv_on(host, cluster.ssh, words),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _has_succeeded(process: subprocess.Popen[bytes], limit_s: float) -> bool:
    try:
        return process.wait(limit_s) == 0
    except subprocess.TimeoutExpired:
        return False


def _has_received(listener: socket.socket, word: str, process: subprocess.Popen[bytes], limit_s: float) -> bool:
    """Whether a peer connects and sends the word, before the command fails or time is up."""
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s and not process.poll():
        with contextlib.suppress(OSError):  # no peer has connected yet, or the peer has closed the connection again
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(1.0)
                if connection.recv(_WORD_BYTES, socket.MSG_WAITALL) == word.encode():
                    return True
    return False
