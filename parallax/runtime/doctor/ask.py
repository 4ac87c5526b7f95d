"""Asks all hosts at once, each by the way on which mpirun reaches it; one that is silent holds up no other's answer."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from parallax.cluster.machines import Cluster, Host
from parallax.runtime.doctor import probe
from parallax.runtime.doctor.findings import Answer, HostFacts
from parallax.runtime.launcher.reach import argv_on
from parallax.runtime.trace.clocks import Ping, best_offset
from parallax.types import JsonObject

LIMIT_S = 30.0
"""How long a host may take to answer, its connection included."""
_PINGS = 8
_READ_BYTES = 1 << 16
_MOST_AT_ONCE = 64


def ask_all(cluster: Cluster, python: str, asked: list[JsonObject], limit_s: float = LIMIT_S) -> list[Answer]:
    """What every host answers, in the order of the hosts.

    Args:
        cluster: whose hosts are asked.
        python: path of the interpreter, on all hosts.
        asked: the question for each host (probe.py).
        limit_s: how long a host may take.
    """
    with ThreadPoolExecutor(min(len(cluster.hosts), _MOST_AT_ONCE)) as pool:
        return list(pool.map(lambda host, own: _ask(cluster, host, python, own, limit_s), cluster.hosts, asked))


def _ask(cluster: Cluster, host: Host, python: str, asked: JsonObject, limit_s: float) -> Answer:
    code = Path(probe.__file__).read_bytes()
    # The program comes first on standard input, and what it is asked after it.
    words = [python, "-c", f"import sys; exec(sys.stdin.buffer.read({len(code)}))"]
    with tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                argv_on(host, cluster.ssh, words),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        except OSError as error:
            return Answer(host.address, None, f"cannot be reached: {error.strerror}: {error.filename}")
        try:
            talk = _Conversation(process, time.monotonic() + limit_s)
            talk.write(code + json.dumps(asked).encode() + b"\n")
            facts = HostFacts(**json.loads(talk.line()))
            pings = [_ping(talk) for _ in range(_PINGS)]
            return Answer(host.address, facts, offset=best_offset(pings))
        except TimeoutError:
            return Answer(host.address, None, f"gave no answer within {limit_s:g} s")
        except (OSError, EOFError, ValueError, TypeError):  # it ended, or something else answers
            _end(process)
            errors.seek(0)
            said = [line for line in errors.read().decode("utf-8", "replace").splitlines() if line.strip()]
            words_of = f": {said[-1].strip()}" if said else ""
            return Answer(host.address, None, f"cannot be asked (status {process.returncode}){words_of}")
        finally:
            _end(process)


class _Conversation:
    """Lines to and from a process, until a moment after which nothing is waited for."""

    def __init__(self, process: subprocess.Popen[bytes], until_s: float) -> None:
        if process.stdin is None or process.stdout is None:
            raise ValueError("A conversation needs both pipes of its process.")
        self._in, self._out = process.stdin.fileno(), process.stdout.fileno()
        self._until_s = until_s
        self._rest = b""
        os.set_blocking(self._in, False)

    def write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            self._wait(select.POLLOUT, self._in)
            left = left[os.write(self._in, left[: select.PIPE_BUF]) :]

    def line(self) -> bytes:
        while b"\n" not in self._rest:
            self._wait(select.POLLIN, self._out)
            read = os.read(self._out, _READ_BYTES)
            if not read:
                raise EOFError
            self._rest += read
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _wait(self, event: int, fd: int) -> None:
        poll = select.poll()
        poll.register(fd, event)
        if not poll.poll(max(0.0, self._until_s - time.monotonic()) * 1e3):
            raise TimeoutError


def _ping(talk: _Conversation) -> Ping:
    """Asks for the host's time. Of the two clocks it is the launching machine's that answers, so it is turned round."""
    began_ns, sent_us = time.monotonic_ns(), time.time_ns() / 1e3
    talk.write(b"?\n")
    theirs_us = float(talk.line())
    half_us = (time.monotonic_ns() - began_ns) / 2e3  # whatever the clock is set to meanwhile
    return Ping(theirs_us - half_us, sent_us + half_us, theirs_us + half_us)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the command, and what it has started here; its pipes are not waited for."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None and not pipe.closed:
            pipe.close()
    try:
        process.wait(1.0)  # by itself, at the end of its input
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
