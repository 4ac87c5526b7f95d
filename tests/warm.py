"""Commands of `parallax` in processes that need not import TensorFlow, which takes longer than most commands do.

A server has imported it, once for all tests of a pytest process. For each command it forks a process, which calls what
the script `parallax` calls: with arguments, folder, environment and files of its own, in a session of its own. A script
that trains without workers, with which a job is compared, is run in such a process as well.
`python -m tests.warm` is the server; it reads a command in a line and tells when a process begins and ends.
"""

from __future__ import annotations

import atexit
import functools
import gc
import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.warm_worker import FOLDER, SUPERVISOR

PRELOADED = ("parallax.entry.api", "parallax.entry.cli", "parallax.runtime.check.command", "scipy.optimize")
AT_START = ("PYTHON", "TF_", "LD_", "OMP_")
"""How variables begin that an interpreter or an import reads: a command with others cannot be forked."""


class Server:
    """A server of commands."""

    def __init__(self) -> None:
        self._of_start = _of_start(os.environ)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.warm"],
            cwd=Path(__file__).parents[1],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._ended: dict[int, int] = {}
        self._rest = b""
        atexit.register(self._process.kill)

    def serves(self, environment: Mapping[str, str]) -> bool:
        """Whether a command with this environment can be forked."""
        return _of_start(environment) == self._of_start

    def start(
        self, words: Sequence[str], cwd: Path, environment: Mapping[str, str], out: Path, err: Path, is_script: bool
    ) -> Forked:
        """Starts `parallax` with the words, or a script with its arguments."""
        out.touch()
        err.touch()
        asked = {"words": words, "cwd": str(cwd), "environment": dict(environment), "out": str(out), "err": str(err)}
        asked["is_script"] = is_script
        self._process.stdin.write(json.dumps(asked).encode() + b"\n")  # type: ignore[union-attr]
        self._process.stdin.flush()  # type: ignore[union-attr]
        while True:
            for kind, pid, _ in self._said(None):
                if kind == "began":
                    return Forked(self, pid)

    def status(self, pid: int, within_s: float | None) -> int | None:
        """The exit status of a process as `subprocess` has it; None when it runs on."""
        deadline_s = None if within_s is None else time.monotonic() + within_s
        while pid not in self._ended:
            left_s = None if deadline_s is None else max(deadline_s - time.monotonic(), 0.0)
            if not self._said(left_s) and left_s == 0.0:
                return None
        return self._ended[pid]

    def _said(self, within_s: float | None) -> list[tuple[str, int, int]]:
        """The lines that have come, waiting for some."""
        pipe = self._process.stdout.fileno()  # type: ignore[union-attr]
        if not select.select([pipe], [], [], within_s)[0]:
            return []
        read = os.read(pipe, 1 << 16)
        if not read:
            raise RuntimeError(f"the server of commands has ended with status {self._process.wait()}")
        *lines, self._rest = (self._rest + read).split(b"\n")
        said = []
        for line in lines:
            kind, pid, status = line.split()
            said.append((kind.decode(), int(pid), int(status)))
            if kind == b"ended":
                self._ended[int(pid)] = int(status)
        return said


@functools.cache
def command_server() -> Server:
    """The server of this process, started with the first command: whatever folders' fixtures ask for it."""
    return Server()


def _of_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(AT_START)}


class Forked:
    """A process that the server has forked; what tests use of subprocess.Popen."""

    def __init__(self, server: Server, pid: int) -> None:
        self._server, self.pid = server, pid

    def poll(self) -> int | None:
        """The exit status, or None."""
        return self._server.status(self.pid, 0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the exit status.

        Raises:
            subprocess.TimeoutExpired: it runs on.
        """
        status = self._server.status(self.pid, timeout)
        if status is None:
            raise subprocess.TimeoutExpired("parallax", timeout or 0.0)
        return status


def _serve() -> None:
    """Forks a process for each line; in it, runs the command and leaves as a Python program does."""
    for name in PRELOADED:
        __import__(name)
    gc.freeze()  # no child looks through what all have
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes)
    rest = b""
    while True:
        ready = select.select([0, woken], [], [])[0]
        if woken in ready:
            os.read(woken, 1 << 10)
            _tell_ended()
        if 0 in ready:
            read = os.read(0, 1 << 20)
            if not read:
                return
            *lines, rest = (rest + read).split(b"\n")
            for line in lines:
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    os.close(woken)
                    os.close(wakes)
                    _become(json.loads(line))
                    return
                _tell("began", pid, 0)


def _tell_ended() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        _tell("ended", pid, os.waitstatus_to_exitcode(status))


def _tell(kind: str, pid: int, status: int) -> None:
    os.write(1, f"{kind} {pid} {status}\n".encode())


def _become(asked: dict[str, Any]) -> None:
    """Makes this process the command's."""
    import numpy as np

    os.setsid()
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    for number, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, asked["out"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
        (2, asked["err"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
    ):
        opened = os.open(path, flags, 0o666)
        os.dup2(opened, number)
        os.close(opened)
    random.seed()
    np.random.seed()
    if asked["is_script"]:
        from parallax.runtime.worker.script import run_script

        run_script(asked["words"])
        return
    sys.argv = ["parallax", *asked["words"]]
    sys.path[0] = asked["cwd"]
    if FOLDER in os.environ:
        from parallax.entry import cli
        from parallax.runtime.launcher import mpirun

        mpirun._AGENT = SUPERVISOR  # type: ignore[assignment]
        cli.start_early_server = lambda *_: None

    from parallax.entry.cli import main

    main()


if __name__ == "__main__":
    _serve()
