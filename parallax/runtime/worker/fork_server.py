"""Forks a host's workers from one process that has imported their modules, above all TensorFlow.

Supervisors start it and send it requests (`parallax.runtime.supervisor.worker_process` describes the protocol); on the
launcher's machine the launcher may have started it before there was a job (`runtime/launcher/early_server.py`). It
imports, with MPI's library loaded and MPI not initialized, and forks a process for each connection. That process
becomes the worker: with its descriptors, environment, arguments and limits, in its own POSIX session. It dies with the
server. If an import has failed, or an import has started threads, which do not survive a fork, the process becomes a
new interpreter instead, which reports the failure.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib.util
import io
import json
import os
import random
import resource
import runpy
import select
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from parallax.runtime.supervisor.control import CONTROL_FD, PREEMPTION_FD
from parallax.runtime.supervisor.preload import forget_preloaded
from parallax.runtime.supervisor.processes import RANK, die_with_parent
from parallax.runtime.supervisor.worker_process import NUMBER, PLACE_OF_RANK, check_peer
from parallax.runtime.worker.without_keras import leaving_out_keras
from parallax.settings.environment import settings

_SERVED = ("numpy", "parallax.functions.remote.serve_driver", "parallax.runtime.open_session", "horovod.tensorflow")
"""Modules for workers that receive their graph from the driving process."""
_SCRIPTED = ("numpy", "parallax.entry.api", "parallax.runtime.open_session", "horovod.tensorflow")
"""Modules for workers that run a script."""
_ENV_START = 47
"""Index of the address of a process's initial environment in proc(5) (`env_start`), counted from its state."""
_MOST_FDS = 16
_PATIENCE_S = 5.0


def main() -> None:
    """Serves the connections to a socket; in a worker, runs its program.

    Arguments are the descriptor of the socket and, optionally, of a pipe at whose end the server exits.
    """
    listening, *lifeline = map(int, sys.argv[1:])
    forget_preloaded()  # processes that imports start do not belong to the job; each worker gets it from its supervisor
    is_whole = _has_one_thread()
    try:
        import_for_workers()
    except BaseException:  # an exit too; a worker fails in the same way, and reports it
        is_whole = False
    order = ForkServer(socket.socket(fileno=listening), lifeline[0] if lifeline else None, is_whole).serve()
    if order is None:
        os._exit(0)
    order.become()


def _has_one_thread() -> bool:
    return len(list(Path("/proc/self/task").iterdir())) == 1


def import_for_workers() -> None:
    """Imports the modules that workers of this process's settings need."""
    serves = settings().without_keras
    with leaving_out_keras() if serves else contextlib.nullcontext():
        import_modules(_SERVED if serves else _SCRIPTED)


def import_modules(modules: Sequence[str]) -> None:
    """Imports modules with MPI's library loaded, and MPI not initialized."""
    # Before TensorFlow: both carry hwloc, and MPI must find its own. The module itself would initialize MPI.
    spec = importlib.util.find_spec("mpi4py.MPI")
    if spec is not None and spec.origin is not None:
        ctypes.CDLL(spec.origin)
    for module in modules:
        import_module(module)


class ForkOrder(NamedTuple):
    """The order for a forked process to become a worker.

    Attributes:
        request: the supervisor's request (`worker_process`).
        fds: descriptors: standard input, output, errors, and those that are passed.
        is_whole: whether the fork server has imported all modules, and had no threads, which this process would lack.
    """

    request: dict[str, Any]
    fds: list[int]
    is_whole: bool

    def become(self) -> None:
        """Makes this process the worker, and runs its program."""
        self._take_place()
        words = self.request["words"]
        if not self.is_whole:
            os.execv(sys.executable, [sys.executable, *words])
        self._start_over()
        _, module, *arguments = words
        sys.argv, sys.orig_argv = [module, *arguments], [sys.executable, *words]
        runpy.run_module(module, run_name="__main__", alter_sys=True)

    def _take_place(self) -> None:
        """Adopts the worker's descriptors, environment, folder and limits."""
        for number, fd in enumerate(self.fds[:3]):
            os.dup2(fd, number)
            os.close(fd)
        os.chdir(self.request["folder"])
        os.umask(self.request["umask"])
        os.sched_setaffinity(0, self.request["cores"])
        for name, limits in self.request["limits"].items():
            with contextlib.suppress(ValueError, OSError):  # descriptors above the server's own
                resource.setrlimit(getattr(resource, name), limits)
        passed = {str(theirs): fd for theirs, fd in zip(self.request["passed"], self.fds[3:], strict=True)}
        environment = self.request["environment"]
        for name in (CONTROL_FD, PREEMPTION_FD):
            if name in environment:
                fd = passed[environment[name]]
                environment[name] = str(fd)
                os.set_inheritable(fd, True)
        os.environ.clear()
        os.environ.update(environment)
        show_rank(environment.get(RANK, ""))

    def _start_over(self) -> None:
        """Repeats the initialization of a new interpreter, and of the preloaded library of the job's processes."""
        prepare = getattr(ctypes.CDLL(None), "parallax_prepare_fence", None)
        if prepare is not None:
            prepare()
        time.tzset()
        random.seed()
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed()
        sys.path[0] = self.request["folder"]
        for stream, fd, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
            before = getattr(sys, stream)
            opened = os.fdopen(fd, f"{mode}b", -1 if mode == "r" else 0, closefd=False)
            made = io.TextIOWrapper(opened, before.encoding, before.errors, write_through=True)  # unbuffered
            setattr(sys, stream, made)
            setattr(sys, f"__{stream}__", made)


def show_rank(rank: str) -> None:
    """Makes /proc show the rank in this process's initial environment, in place of the server's, and as its name.

    Args:
        rank: in digits.
    """
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(f"rank {rank}", encoding="ascii")
    ((name, value),) = PLACE_OF_RANK.items()
    place = Path("/proc/self/environ").read_bytes().find(f"{name}={value}".encode())
    fields = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    begin, length = int(fields[_ENV_START]), len(name) + 1 + len(value)
    text = f"{RANK}={rank}".encode()
    if place >= 0 and begin > 0 and len(text) <= length:
        ctypes.memmove(begin + place, text.ljust(length, b"\0"), length)


class ForkServer:
    """Forks a process for each supervisor that connects, and reports the process's end to it.

    Args:
        listening: the socket to which they connect.
        lifeline: a descriptor at whose end the server ends; None to end when no connection is left.
        is_whole: whether forked processes need not become new interpreters.
    """

    def __init__(self, listening: socket.socket, lifeline: int | None = None, is_whole: bool = True) -> None:
        self._listening, self._lifeline, self._is_whole = listening, lifeline, is_whole
        self._workers: dict[socket.socket, int] = {}
        self._ended: set[int] = set()
        self._killed: set[int] = set()

    def serve(self) -> ForkOrder | None:
        """Serves until it is no longer needed; returns in each forked process, with the order for that process."""
        gc.freeze()  # garbage collection in workers skips the shared objects
        # NumPy recreates its threads in a forked process, and there are no others.
        warnings.filterwarnings("ignore", message=".*multi-threaded.*fork", category=DeprecationWarning)
        woken, wakes = os.pipe()
        os.set_blocking(wakes, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        asleep = [woken, self._listening, *(() if self._lifeline is None else (self._lifeline,))]
        while True:
            ready = select.select([*asleep, *self._workers], [], [], None if self._workers else _PATIENCE_S)[0]
            if self._lifeline in ready and not os.read(self._lifeline or 0, 1):
                return None
            if woken in ready:
                os.read(woken, 1 << 10)
                self._report_ends()
            for supervisor in [one for one in ready if one in self._workers]:  # it sends nothing more, so it has ended
                self._kill_rest(supervisor)
            if self._listening in ready:
                order = self._fork((woken, wakes))
                if order is not None:
                    return order
            elif not self._workers and self._lifeline is None:
                return None

    def _fork(self, own_fds: Sequence[int]) -> ForkOrder | None:
        """Forks a process for the next connection; returns its order, in that process."""
        supervisor, _ = self._listening.accept()
        supervisor.settimeout(_PATIENCE_S)  # for a process of the same user, which has sent everything at once
        fds: list[int] = []
        try:
            check_peer(supervisor)
            _, fds, _, _ = socket.recv_fds(supervisor, 1, _MOST_FDS)
            request, *handed = fds
            order = json.loads(os.pread(request, os.fstat(request).st_size, 0))
        except (OSError, ValueError):
            supervisor.close()
            for fd in fds:
                os.close(fd)
            return None
        server, is_whole = os.getpid(), self._is_whole and threading.active_count() == 1
        try:
            pid = os.fork()
        except OSError:  # no memory, or too many processes: the supervisor sees its connection end
            supervisor.close()
            pid = -1
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setsid()
            die_with_parent(signal.SIGKILL)
            if os.getppid() != server:
                os._exit(1)
            for one in (self._listening, supervisor, *self._workers):
                one.close()
            for fd in (request, *own_fds, *(() if self._lifeline is None else (self._lifeline,))):
                os.close(fd)
            return ForkOrder(order, handed, is_whole)
        for fd in fds:
            os.close(fd)
        if pid < 0:
            return None
        self._workers[supervisor] = pid
        with contextlib.suppress(OSError):  # the supervisor has ended: its end is detected next
            supervisor.sendall(NUMBER.pack(pid))
        return None

    def _report_ends(self) -> None:
        """Sends the status of workers that have ended; they are reaped when their supervisors have read it."""
        for supervisor, pid in self._workers.items():
            if pid in self._ended:
                continue
            found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is not None:
                self._ended.add(pid)
                status = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
                with contextlib.suppress(OSError):
                    supervisor.sendall(NUMBER.pack(status))
        self._reap()

    def _kill_rest(self, supervisor: socket.socket) -> None:
        """Kills the rest of a worker, with its process group, which it may not have made yet."""
        pid = self._workers.pop(supervisor)
        supervisor.close()
        for kill in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError):
                kill(pid, signal.SIGKILL)
        self._ended.discard(pid)
        self._killed.add(pid)
        self._reap()

    def _reap(self) -> None:
        """Reaps killed workers that are dead; one may hang in the kernel for a while."""
        self._killed -= {pid for pid in self._killed if os.waitpid(pid, os.WNOHANG)[0]}


if __name__ == "__main__":
    main()
