"""Workers of tests' jobs in processes that need not import TensorFlow, which takes most of the time of a small job.

A fork server stays from job to job. It was started as the workers would have been, with the same libraries and
variables that are read at the start. Where there is none, a worker's supervisor asks who starts servers (`Starter`) for
one, with what the worker would have been started with, and waits for it: its imports are then those of later jobs too.

`python -m tests.warm_worker [OPTIONS] -- PROGRAM ARGS...` is a rank's supervisor, as in parallax/runtime/supervisor/
agent.py but for where its worker comes from; `python -m tests.warm_worker serve SOCKET` the server.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from parallax.runtime.supervisor.worker_process import (
    ForkedWorker,
    ServerConnection,
    WorkerOrder,
    WorkerProcess,
    check_peer,
    start_worker,
)

FOLDER = "PARALLAX_TEST_WORKERS"
"""The folder of the servers' sockets, in the environment of jobs whose workers may be forked."""
SUPERVISOR = ("-m", "tests.warm_worker")
"""What starts a supervisor by which workers may be forked, in place of parallax/runtime/launcher/mpirun.py's own."""
_AT_START = ("PYTHON", "TF_", "LD_", "OMP_", "MALLOC_")
_MOST_SERVERS = 3
_LOOK_S = 0.05
_PATIENCE_S = 20.0  # for a server's imports; a worker is started in another way then


def name_of(environment: Mapping[str, str]) -> str:
    """What processes have in common that one server can fork."""
    start = sorted(f"{name}={value}" for name, value in environment.items() if name.startswith(_AT_START))
    return hashlib.sha256("\n".join(start).encode()).hexdigest()[:16]


class Starter:
    """Starts the servers that supervisors ask for, in a thread that looks for what they leave in a folder."""

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="workers-")
        self._servers: dict[str, subprocess.Popen[bytes]] = {}
        self._shall_end = threading.Event()
        self._looking = threading.Thread(target=self._look, name="servers of workers", daemon=True)
        self._looking.start()
        atexit.register(self._end, os.getpid())

    def _look(self) -> None:
        while not self._shall_end.wait(_LOOK_S):
            for wanted in Path(self.folder).glob("*.wanted"):
                self._start(wanted)

    def _start(self, wanted: Path) -> None:
        """Starts what has been asked for, and again what has ended; more than some are refused.

        A server has of the environment that was asked with what is read at the start alone, and the rest from here: by
        the mark of a test's processes it would be ended with these.
        """
        asked = json.loads(wanted.read_text())
        wanted.unlink()
        known = self._servers.get(wanted.stem)
        if known is not None and known.poll() is None:
            return
        if known is None and len(self._servers) == _MOST_SERVERS:
            wanted.with_suffix(".refused").touch()
            return
        read_at_start = {name: value for name, value in asked.items() if name.startswith(_AT_START)}
        others = {name: value for name, value in os.environ.items() if not name.startswith(_AT_START)}
        self._servers[wanted.stem] = subprocess.Popen(
            [sys.executable, "-m", "tests.warm_worker", "serve", f"{self.folder}/{wanted.stem}"],
            cwd=Path(__file__).parents[1],
            env={**others, **read_at_start},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _end(self, owner: int) -> None:
        if os.getpid() != owner:  # a process that a test has forked
            return
        self._shall_end.set()
        self._looking.join()
        for server in self._servers.values():
            server.kill()
            server.wait()
        shutil.rmtree(self.folder)


@functools.cache
def starter() -> Starter:
    """That of this process, with which its servers end: whatever folders' fixtures ask for it."""
    return Starter()


def fork_workers(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a job (`tests.launched`) whose workers may be forked."""
    return {**environment, FOLDER: starter().folder}


# --- the supervisor ---


def _started(order: WorkerOrder, is_forked: bool) -> WorkerProcess:
    """A worker: forked where a server could be its interpreter, else as its job would start it.

    A program of tests (`tests.launched`) is forked by its job's own server then, as a script would be.
    """
    path = Path(order.environment[FOLDER]) / name_of(order.environment)
    server = _connected(path)
    if server is None and not path.with_suffix(".refused").exists():
        own = path.with_suffix(f".{os.getpid()}")  # several ranks may ask for one server at once
        own.write_text(json.dumps(dict(order.environment)))
        own.replace(path.with_suffix(".wanted"))
        until_s = time.monotonic() + _PATIENCE_S
        while server is None and time.monotonic() < until_s and not path.with_suffix(".refused").exists():
            time.sleep(_LOOK_S)
            server = _connected(path)
    if server is None:
        return start_worker(order, is_forked or _is_of_tests(order.program))
    connection = ServerConnection(server, check_peer(server))
    return ForkedWorker(order, lambda output: connection)


def _connected(path: Path) -> socket.socket | None:
    """A connection to the server with a socket; None while there is none."""
    server = socket.socket(socket.AF_UNIX)
    try:
        server.connect(str(path))
    except OSError:
        server.close()
        return None
    return server


def _is_of_tests(program: Sequence[str]) -> bool:
    return program[0] == "-m" and program[1].startswith("tests.")


def _supervise(arguments: list[str]) -> int:
    from parallax.runtime.supervisor import agent

    agent.start_worker = _started
    return agent.main(arguments)


# --- the server ---


def _serve(path: str) -> None:
    """Forks a worker for each supervisor that connects, as a job's own server does, and stays."""
    from parallax.runtime.worker import fork_server

    fork_server.import_for_workers()
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(f"{path}.made")
    listening.listen()
    Path(f"{path}.made").rename(path)
    order = fork_server.ForkServer(listening, lifeline=0).serve()
    if order is not None:
        order.become()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        _serve(sys.argv[2])
    else:
        sys.exit(_supervise(sys.argv[1:]))
