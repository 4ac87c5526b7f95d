"""Workers of tests' jobs in processes that need not import TensorFlow, which takes most of the time of a small job.

A server has imported what workers import, and forks one for each rank that asks. It was started as the worker would
have been, with the same libraries and variables that are read at the start; where there is none, the worker is a new
process, and what it would have been started with is left for who starts servers (`Starter`).

`python -m tests.warm_worker [OPTIONS] -- PROGRAM ARGS...` is a rank's supervisor, as in parallax/runtime/supervisor/
agent.py but for where its worker comes from; `python -m tests.warm_worker serve SOCKET` the server.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import hashlib
import io
import json
import os
import random
import runpy
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

FOLDER = "PARALLAX_TEST_WORKERS"
"""The folder of the servers' sockets, in the environment of jobs whose workers may be forked."""
_AT_START = ("PYTHON", "TF_", "LD_", "OMP_", "MALLOC_")
_PRELOADED = ("numpy", "parallax.api", "parallax.runtime.open_session", "horovod.tensorflow")
_MOST_SERVERS = 3
_NUMBER = struct.Struct("=i")
_SET_SIGNAL = 10  # F_SETSIG of fcntl(2)


def name_of(environment: Mapping[str, str]) -> str:
    """What processes have in common that one server can fork."""
    start = sorted(f"{name}={value}" for name, value in environment.items() if name.startswith(_AT_START))
    return hashlib.sha256("\n".join(start).encode()).hexdigest()[:16]


class Starter:
    """Starts the servers that supervisors have asked for; one of a pytest process, which they end with."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="workers-"))
        self._servers: dict[str, subprocess.Popen[bytes]] = {}
        atexit.register(self._end, os.getpid())

    @property
    def folder(self) -> str:
        """Where their sockets are; what has been asked for meanwhile is started, and again what has ended.

        A server has of the environment that was asked with what is read at the start alone, and the rest from here: by
        the mark of a test's processes it would be ended with these.
        """
        for wanted in self._folder.glob("*.wanted"):
            known = self._servers.get(wanted.stem)
            if known is not None and known.poll() is not None:
                del self._servers[wanted.stem]
            if wanted.stem not in self._servers and len(self._servers) < _MOST_SERVERS:
                asked = json.loads(wanted.read_text())
                read_at_start = {name: value for name, value in asked.items() if name.startswith(_AT_START)}
                others = {name: value for name, value in os.environ.items() if not name.startswith(_AT_START)}
                self._servers[wanted.stem] = subprocess.Popen(
                    [sys.executable, "-m", "tests.warm_worker", "serve", f"{self._folder}/{wanted.stem}"],
                    cwd=Path(__file__).parents[1],
                    env={**others, **read_at_start},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
        return str(self._folder)

    def _end(self, owner: int) -> None:
        if os.getpid() != owner:  # a process that a test has forked
            return
        for server in self._servers.values():
            server.kill()
            server.wait()
        shutil.rmtree(self._folder)


# --- the supervisor ---


class ForkedWorker:
    """A worker that a server has forked; what a supervisor uses of subprocess.Popen."""

    def __init__(
        self, server: socket.socket, words: Sequence[str], stdin: int, env: Mapping[str, str], fds: Sequence[int]
    ) -> None:
        (out, given_out), (err, given_err) = os.pipe(), os.pipe()
        asked = json.dumps({"words": words, "cwd": str(Path.cwd()), "environment": dict(env), "fds": fds}).encode()
        socket.send_fds(server, [_NUMBER.pack(len(asked))], [stdin, given_out, given_err, *fds])
        server.sendall(asked)
        for fd in (given_out, given_err):
            os.close(fd)
        self.stdout, self.stderr = os.fdopen(out, "rb", 0), os.fdopen(err, "rb", 0)
        self.pid = _NUMBER.unpack(server.recv(_NUMBER.size, socket.MSG_WAITALL))[0]
        self.returncode: int | None = None
        self._server = server
        fcntl.fcntl(server, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(server, _SET_SIGNAL, signal.SIGCHLD)  # as for a child
        fcntl.fcntl(server, fcntl.F_SETFL, fcntl.fcntl(server, fcntl.F_GETFL) | os.O_ASYNC)

    def poll(self) -> int | None:
        """The exit status, or None."""
        if self.returncode is None and select.select([self._server], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self) -> int:
        """Waits for the exit status."""
        if self.returncode is None:
            said = self._server.recv(_NUMBER.size, socket.MSG_WAITALL)
            self.returncode = _NUMBER.unpack(said)[0] if said else -signal.SIGKILL
        return self.returncode


def _started(words: Sequence[str], **options: Any) -> Any:
    """A worker: forked where a server could be its interpreter, else a new process."""
    environment = options["env"]
    path = Path(environment[FOLDER]) / name_of(environment)
    server = socket.socket(socket.AF_UNIX)
    try:
        server.connect(str(path))
    except OSError:
        own = path.with_suffix(f".{os.getpid()}")  # several ranks may ask for one server at once
        own.write_text(json.dumps(dict(environment)))
        own.replace(path.with_suffix(".wanted"))
        server.close()
        return subprocess.Popen(words, **options)
    stdin = 0 if options["stdin"] is None else os.open(os.devnull, os.O_RDONLY)
    return ForkedWorker(server, words[1:], stdin, environment, options["pass_fds"])


def _supervise(arguments: list[str]) -> int:
    from types import SimpleNamespace

    from parallax.runtime.supervisor import agent

    class Supervisor(agent._Supervisor):
        def _has_ended(self) -> bool:
            process: Any = self._process
            return process.poll() is not None if isinstance(process, ForkedWorker) else super()._has_ended()

    names = {"Popen": _started, "PIPE": subprocess.PIPE, "DEVNULL": subprocess.DEVNULL}
    agent.subprocess = SimpleNamespace(**names)  # type: ignore[assignment]
    agent._Supervisor = Supervisor  # type: ignore[misc]
    return agent.main(arguments)


# --- the server ---


def _serve(path: str) -> None:
    """Forks a worker for each supervisor that connects, and kills those whose supervisor has ended."""
    import mpi4py

    mpi4py.rc.initialize = False  # which each worker does itself; the library must be there before TensorFlow
    mpi4py.rc.finalize = False
    from mpi4py import MPI  # noqa: F401

    for name in _PRELOADED:
        __import__(name)
    gc.freeze()
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(f"{path}.made")
    listening.listen()
    Path(f"{path}.made").rename(path)
    workers: dict[socket.socket, int] = {}
    while True:
        ready = select.select([0, woken, listening, *workers], [], [])[0]
        if 0 in ready and not os.read(0, 1):
            return
        if woken in ready:
            os.read(woken, 1 << 10)
            _tell_ended(workers)
        for asking in [one for one in ready if one in workers]:  # they say nothing more: it has ended
            _kill(workers.pop(asking))
            asking.close()
        if listening in ready:
            asking, _ = listening.accept()
            length, fds, _, _ = socket.recv_fds(asking, _NUMBER.size, 16)
            asked = json.loads(asking.recv(_NUMBER.unpack(length)[0], socket.MSG_WAITALL))
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for one in (listening, asking, *workers):
                    one.close()
                os.close(woken)
                os.close(wakes)
                _become(asked, fds)
                return
            for fd in fds:
                os.close(fd)
            asking.sendall(_NUMBER.pack(pid))
            workers[asking] = pid


def _kill(pid: int) -> None:
    """Kills a worker with its process group, which it may not have made yet."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)


def _tell_ended(workers: dict[socket.socket, int]) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        for asking in [one for one, other in workers.items() if other == pid]:
            del workers[asking]
            with contextlib.suppress(BrokenPipeError):  # the supervisor has ended too
                asking.sendall(_NUMBER.pack(os.waitstatus_to_exitcode(status)))
            asking.close()


def _become(asked: dict[str, Any], fds: list[int]) -> None:
    """Makes this process the worker."""
    import numpy as np
    from mpi4py import MPI

    from parallax.runtime.supervisor.processes import die_with_parent

    os.setsid()
    die_with_parent(signal.SIGKILL)
    os.chdir(asked["cwd"])
    for number, fd in enumerate(fds[:3]):
        os.dup2(fd, number)
        os.close(fd)
    number_of = {str(there): str(here) for there, here in zip(asked["fds"], fds[3:], strict=True)}
    for name, value in asked["environment"].items():
        if name.endswith("_FD") and value in number_of:
            asked["environment"][name] = number_of[value]
    os.environ.clear()
    os.environ.update(asked["environment"])
    ctypes.CDLL(None).parallax_prepare_fence()
    random.seed()
    np.random.seed()
    sys.path[0] = asked["cwd"]
    _, module, *arguments = asked["words"]
    sys.argv = [module, *arguments]
    for stream, fd, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        opened = os.fdopen(fd, f"{mode}b", -1 if mode == "r" else 0, closefd=False)
        setattr(sys, stream, io.TextIOWrapper(opened, write_through=True))  # as PYTHONUNBUFFERED has them
        setattr(sys, f"__{stream}__", getattr(sys, stream))
    MPI.Init_thread(MPI.THREAD_MULTIPLE)
    ctypes.pythonapi.Py_AtExit(ctypes.cast(ctypes.CDLL(_loaded("libmpi.so")).MPI_Finalize, ctypes.c_void_p))
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _loaded(name: str) -> str:
    """The path of a library of this process."""
    maps = Path("/proc/self/maps").read_text(encoding="ascii").splitlines()
    return next(path for line in maps if Path(path := line.split()[-1]).name.startswith(name))


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        _serve(sys.argv[2])
    else:
        sys.exit(_supervise(sys.argv[1:]))
