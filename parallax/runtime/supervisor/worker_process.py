"""A rank's worker process, as its supervisor controls it: a new interpreter, or a fork of the host's fork server.

A host of several workers imports TensorFlow once: the first of its supervisors starts a fork server
(`parallax.runtime.worker.fork_server`), unless the launcher has, and all request their workers from it, on an abstract
socket that is named by the job. A supervisor sends one byte with the worker's file descriptors, the first of which
holds the request; the server answers with the worker's process id once it is forked, and with its exit status once it
has ended. The peer of a connection must be a process of the same user. The server kills a worker whose supervisor has
closed the connection, and ends when all have. Where it cannot be reached, workers are new interpreters.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from parallax.runtime.supervisor.frames import StreamName
from parallax.runtime.supervisor.processes import JOB_ID, die_with_parent

WORKER = ("-m", "parallax.runtime.worker.main")
"""Leading arguments of programs that a fork server has imported modules for."""
FORK = "fork"
"""Request of a supervisor to have its worker forked."""
FORK_SERVER = ("-m", "parallax.runtime.worker.fork_server")
WORKER_DEFAULTS = {
    "PYTHONUNBUFFERED": "1",  # Python would otherwise buffer output to a pipe in blocks of 8 KiB
    "UCX_DEBUG_SIGNO": "0",  # UCX, which Open MPI loads, would log more at a SIGHUP, and live on
}
NUMBER = struct.Struct("=i")
"""Message of a fork server: a process id, and later an exit status (minus the signal)."""

PLACE_OF_RANK = {"PARALLAX_PLACE_OF_RANK": "-" * 16}
"""A variable of a server that a forked worker overwrites with its rank, by which its supervisor and others find it."""

_OF_ONE_RANK = re.compile("OMPI_|PMIX_|PARALLAX_LISTEN_PORT$|.*_FD$")
"""Variables that differ between the workers of a host; a server has no rank, by which its supervisor would end it."""
_NO_SERVER = 127
"""The status of a worker whose server ended before the worker was forked."""
_PEER = struct.Struct("=iII")  # ucred of unix(7): process, user, group
BACKLOG = 1024
_PATIENCE_S, _PAUSE_S, _END_S = 10.0, 0.01, 0.5
_LIMITS = tuple(name for name in dir(resource) if name.startswith("RLIMIT_"))


@dataclass(frozen=True, slots=True)
class WorkerOrder:
    """The start parameters of a worker.

    Attributes:
        program: arguments of the interpreter.
        environment: all of it.
        stdin: the descriptor that it reads; None for an empty input.
        passed: other descriptors that it inherits, by the variables that name them.
    """

    program: Sequence[str]
    environment: Mapping[str, str]
    stdin: int | None
    passed: Sequence[int]


class WorkerProcess(Protocol):
    """A worker process, whichever process is its parent.

    Attributes:
        pid: its process id, and the number of its process group; until a fork server has forked it, the server's.
        streams: the descriptors from which its output is read.
        news_fd: a descriptor that becomes readable when its status changes; None where SIGCHLD reports it.
    """

    pid: int
    streams: dict[StreamName, int]
    news_fd: int | None

    def take_news(self) -> None:
        """Reads the messages on `news_fd`."""

    def has_ended(self) -> bool:
        """Whether it is dead; no other process can have its number before `wait` has returned."""

    def wait(self) -> int:
        """Waits for its end; returns its exit status, or minus the signal that ended it."""

    def signal(self, number: int) -> None:
        """Sends a signal to its process group; does nothing if it has ended."""


def start_worker(order: WorkerOrder, is_forked: bool) -> WorkerProcess:
    """Starts a worker.

    Args:
        order: the start parameters.
        is_forked: whether a fork server forks it, for a program that begins with `WORKER`.

    Raises:
        OSError: the interpreter cannot be started.
    """
    if is_forked:
        with contextlib.suppress(OSError):  # for example where security modules allow no abstract sockets
            name = server_name(order.environment[JOB_ID])
            return ForkedWorker(order, lambda output: connect_to_server(name, FORK_SERVER, order.environment, output))
    return SpawnedWorker(order)


class SpawnedWorker:
    """A new interpreter, a child of this process."""

    def __init__(self, order: WorkerOrder) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *order.program],
            stdin=subprocess.DEVNULL if order.stdin is None else order.stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=order.environment,
            pass_fds=tuple(order.passed),
            start_new_session=True,
            preexec_fn=tied_to(os.getpid()),
        )
        assert self._process.stdout is not None and self._process.stderr is not None
        self.pid = self._process.pid
        self.streams: dict[StreamName, int] = {
            "stdout": self._process.stdout.fileno(),
            "stderr": self._process.stderr.fileno(),
        }
        self.news_fd: int | None = None

    def take_news(self) -> None:
        """Does nothing: SIGCHLD reports status changes."""

    def has_ended(self) -> bool:
        """Whether it is dead; it is not waited for."""
        if self._process.returncode is not None:
            return True
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def wait(self) -> int:
        """Waits for its end; returns its exit status, or minus the signal that ended it."""
        return self._process.wait()

    def signal(self, number: int) -> None:
        """Sends a signal to its process group; does nothing if it has ended."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)


def tied_to(parent: int) -> Callable[[], None]:
    """Returns a function that a child calls between fork and exec, to die with a parent that has no threads."""

    def tie() -> None:
        die_with_parent(signal.SIGKILL)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)

    return tie


class ForkedWorker:
    """A process that a fork server forks when it has imported the workers' modules.

    Args:
        order: the start parameters.
        connect: connects to the fork server; receives descriptors for the output of one that it must start first.
    """

    def __init__(self, order: WorkerOrder, connect: Callable[[tuple[int, int]], ServerConnection]) -> None:
        (out, written_out), (err, written_err) = os.pipe(), os.pipe()
        self.streams: dict[StreamName, int] = {"stdout": out, "stderr": err}
        stdin = os.open(os.devnull, os.O_RDONLY) if order.stdin is None else order.stdin
        request = os.memfd_create("request")
        try:
            server = connect((written_out, written_err))
            os.write(request, _request_bytes(order))
            handed = [request, stdin, written_out, written_err, *order.passed]
            socket.send_fds(server.socket, [b"+"], handed)
        except BaseException:
            os.close(out)
            os.close(err)
            raise
        finally:
            for fd in (request, written_out, written_err, *(() if order.stdin is not None else (stdin,))):
                os.close(fd)
        self.pid = server.pid
        self.news_fd: int | None = server.socket.fileno()
        self._server = server
        self._is_forked = False
        self._status: int | None = None

    def take_news(self) -> None:
        """Reads its process id or its exit status."""
        if self._status is not None:
            return
        try:
            data = self._server.socket.recv(NUMBER.size, socket.MSG_WAITALL)
        except OSError:
            data = b""
        if not data:
            self._lose_server()
        elif self._is_forked:
            self._end(NUMBER.unpack(data)[0])
        else:
            self._is_forked, self.pid = True, NUMBER.unpack(data)[0]

    def has_ended(self) -> bool:
        """Whether it is dead; the fork server does not reap it before this process has."""
        while self._status is None and select.select([self._server.socket], [], [], 0)[0]:
            self.take_news()
        return self._status is not None

    def wait(self) -> int:
        """Waits for its end; returns its exit status, or minus the signal that ended it."""
        while self._status is None:
            self.take_news()
        self._server.close()
        return self._status

    def signal(self, number: int) -> None:
        """Sends a signal to its process group; a worker that is not yet forked will not be."""
        if not self._is_forked and self._status is None:
            self._end(-number)
            self._server.kill()  # a worker that is not yet forked ends at once, and its job with it
        elif self._is_forked and not self._server.is_closed:
            self._signal_group(number)

    def _signal_group(self, number: int) -> None:
        for kill in (os.killpg, os.kill):  # it may not have created its group yet
            try:
                kill(self.pid, number)
            except ProcessLookupError:
                continue
            return

    def _lose_server(self) -> None:
        """Handles the end of the server, and with it of the workers it forked; processes that these started live on."""
        if self._is_forked:
            self._signal_group(signal.SIGKILL)
        status = self._server.status()
        self._server.close()
        self._end(-signal.SIGKILL if self._is_forked else _NO_SERVER if status is None else status)

    def _end(self, status: int) -> None:
        self._status, self.news_fd = status, None


class ServerConnection:
    """A connection to a fork server.

    Args:
        connected: the socket.
        pid: of the server.
        started: the server, if this process has started it.
    """

    def __init__(self, connected: socket.socket, pid: int, started: subprocess.Popen[bytes] | None = None) -> None:
        self.socket, self.pid, self._started = connected, pid, started
        self.is_closed = False

    def kill(self) -> None:
        """Kills a server that this process has started."""
        if self._started is not None:
            self._started.kill()

    def status(self) -> int | None:
        """Exit status of a server that this process has started; None for others, and for a running one."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return None if self._started is None else self._started.wait(_END_S)
        return None

    def close(self) -> None:
        """Closes it: the server may forget the worker."""
        self.socket.close()
        self.is_closed = True


def connect_to_server(
    name: str, program: Sequence[str], environment: Mapping[str, str], output: tuple[int, int]
) -> ServerConnection:
    """Connects to a fork server on this host, and starts it if there is none.

    Args:
        name: of its abstract socket.
        program: arguments of its interpreter, without the descriptor of its socket, which follows them.
        environment: of a worker.
        output: descriptors for standard output and errors of the server, if this process starts it.

    Raises:
        OSError: it cannot be started, or does not accept this process.
    """
    deadline_s = time.monotonic() + _PATIENCE_S
    started: subprocess.Popen[bytes] | None = None
    while True:
        connected = socket.socket(socket.AF_UNIX)
        try:
            connected.connect(name)
        except ConnectionRefusedError:
            connected.close()
            if time.monotonic() > deadline_s:
                raise
            started = _start_server(name, program, environment, output)
            if started is None:  # another supervisor does, at this moment
                time.sleep(_PAUSE_S)
        else:
            return ServerConnection(connected, check_peer(connected), started)


def server_name(job_id: str) -> str:
    """Returns the name of the abstract socket of a job's fork server.

    Containers may share the network, in which such names are unique, and nothing else.
    """
    spaces = "-".join(str(Path(f"/proc/self/ns/{kind}").stat().st_ino) for kind in ("mnt", "pid"))
    return f"\0parallax-{job_id}-{spaces}"


def check_peer(connected: socket.socket) -> int:
    """Returns the peer's process id of a local connection.

    Raises:
        PermissionError: it is another user's.
    """
    data = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    pid, user, _ = _PEER.unpack(data)
    if user != os.geteuid():
        raise PermissionError(f"Process {pid} of user {user} is at a socket of a job of user {os.geteuid()}.")
    return int(pid)


def _start_server(
    name: str, program: Sequence[str], environment: Mapping[str, str], output: tuple[int, int]
) -> subprocess.Popen[bytes] | None:
    """Starts a fork server; None if another process has the name already."""
    shared = {name: value for name, value in environment.items() if not _OF_ONE_RANK.match(name)}
    with socket.socket(socket.AF_UNIX) as listening:
        try:
            listening.bind(name)
        except OSError:
            return None
        # Not tied to this process, which may end before the host's other workers: the server sees its connection end.
        return subprocess.Popen(
            [sys.executable, *program, str(listening.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=output[0],
            stderr=output[1],
            env={**shared, **PLACE_OF_RANK},
            pass_fds=(listening.fileno(),),
            start_new_session=True,
            preexec_fn=lambda: listening.listen(BACKLOG),  # in the child, so that peers see the server's process
        )


def _request_bytes(order: WorkerOrder) -> bytes:
    umask = os.umask(0o077)
    os.umask(umask)
    request: dict[str, Any] = {
        "words": list(order.program),
        "folder": str(Path.cwd()),
        "environment": dict(order.environment),
        "passed": list(order.passed),
        "cores": sorted(os.sched_getaffinity(0)),
        "umask": umask,
        "limits": {name: resource.getrlimit(getattr(resource, name)) for name in _LIMITS},
    }
    return json.dumps(request).encode()
