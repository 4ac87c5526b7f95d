"""The socket on which a lab accepts commands from agents for its hosts. A thread serves each agent.

A request is a line of JSON, [host, shell command], sent with the agent's three standard streams. The answer is the
exit status. A command outlives a killed agent, as it does behind an ssh without a terminal.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

UNKNOWN_HOST = 255  # ssh's status where it cannot connect
_REQUEST_BYTES = 1 << 20


class Gate:
    """Serves agents inside a `with` block.

    Args:
        path: the socket's path.
        argv_on: (host, argv) -> the command that runs argv on that host; KeyError for an unknown host.
    """

    def __init__(self, path: Path, argv_on: Callable[[str, list[str]], list[str]]) -> None:
        self._path = path
        self._argv_on = argv_on
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    def __enter__(self) -> Gate:
        self._socket.bind(str(self._path))
        self._socket.listen()
        threading.Thread(target=self._accept, name="lab-gate", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                agent, _ = self._socket.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._serve, args=(agent,), name="lab-agent", daemon=True).start()

    def _serve(self, agent: socket.socket) -> None:
        with agent:
            request, streams, _, _ = socket.recv_fds(agent, _REQUEST_BYTES, 3)
            if len(streams) != 3:
                return
            try:
                while not request.endswith(b"\n"):
                    request += agent.recv(_REQUEST_BYTES)
                host, command = json.loads(request)
                status = self._run(host, command, streams)
            finally:
                for stream in streams:
                    os.close(stream)
            with contextlib.suppress(OSError):  # the agent has been killed
                agent.sendall(str(status).encode())

    def _run(self, host: str, command: str, streams: list[int]) -> int:
        try:
            argv = self._argv_on(host, ["/bin/sh", "-c", command])
        except KeyError:
            os.write(streams[2], f"lab: there is no host {host}\n".encode())
            return UNKNOWN_HOST
        stdin, stdout, stderr = streams
        environment = {"HOME": str(Path.home()), "PATH": "/usr/local/bin:/usr/bin:/bin", "USER": "root"}
        done = subprocess.run(argv, stdin=stdin, stdout=stdout, stderr=stderr, env=environment, cwd="/", check=False)
        return done.returncode if done.returncode >= 0 else 128 - done.returncode
