"""Probes all hosts in parallel, each through the agent that mpirun uses to reach it; a silent host delays no other.

A host's output is bounded in time and in bytes, parsed by type, and never shown raw: a host may answer with a login
banner, with another program's output, or without end.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import signal
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

from parallax.base.strict import shown
from parallax.base.types import JsonObject
from parallax.cluster.machines import Cluster, Host
from parallax.report.text import bytes_text
from parallax.runtime.doctor import probe
from parallax.runtime.doctor.findings import Answer, facts_from
from parallax.runtime.launcher.reach import NOTICE_S, argv_on, describe_waiting
from parallax.runtime.trace.clocks import Ping, best_offset
from parallax.settings.config import HOST_TIMEOUT_S

MOST_BYTES = 1 << 20
"""The maximum output of a host, login banners included; an answer has a few kB."""
_PINGS = 8
_READ_BYTES = 1 << 16
_TAIL_BYTES = 1 << 12  # of errors, for the last line
_SHOWN = 200
_MOST_AT_ONCE = 64
_WORD_BYTES = 8
_END_S = 1.0
_CLOCK_DIGITS = 18


def query_hosts(
    cluster: Cluster,
    python: str,
    questions: list[JsonObject],
    limit_s: float = HOST_TIMEOUT_S,
    tell: Callable[[str], None] = lambda text: None,
) -> list[Answer]:
    """Returns the answer of every host, in the order of the hosts.

    Args:
        cluster: the hosts to probe.
        python: path of the interpreter, on all hosts.
        questions: the request for each host (probe.py).
        limit_s: how long a host may take, its connection included.
        tell: prints a line to the user with the hosts that are awaited.
    """
    with ThreadPoolExecutor(min(len(cluster.hosts), _MOST_AT_ONCE)) as pool:
        answers = [
            pool.submit(_query_host, cluster, host, python, question, limit_s)
            for host, question in zip(cluster.hosts, questions, strict=True)
        ]
        wait(answers, NOTICE_S)
        silent = [host.address for host, answer in zip(cluster.hosts, answers, strict=True) if not answer.done()]
        if silent:
            tell(describe_waiting(silent, NOTICE_S, limit_s))
        return [answer.result() for answer in answers]


def _query_host(cluster: Cluster, host: Host, python: str, question: JsonObject, limit_s: float) -> Answer:
    code = Path(probe.__file__).read_bytes()
    word = secrets.token_hex(_WORD_BYTES)  # marks the answers: no banner contains it
    # The program is sent first on standard input, followed by the request.
    words = [python, "-c", f"import sys; exec(sys.stdin.buffer.read({len(code)}))"]
    try:
        process = subprocess.Popen(
            argv_on(host, cluster.ssh, words),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        return Answer(host.address, None, f"cannot be reached: {error.strerror}: {error.filename}")
    talk = _Conversation(process, word.encode(), time.monotonic() + limit_s)
    try:
        talk.write(code + json.dumps({**question, "word": word}).encode() + b"\n")
        facts = facts_from(talk.answer(), question)
        pings = [_ping(talk) for _ in range(_PINGS)]
        return Answer(host.address, facts, offset=best_offset(pings))
    except TimeoutError:
        return Answer(host.address, None, f"did not respond within {limit_s:g} s{talk.read_last_line()}")
    except _OutputTooLong:
        return Answer(
            host.address, None, f"sends {bytes_text(MOST_BYTES)} and more, but no answer{talk.read_last_line()}"
        )
    except (OSError, EOFError):  # it ended
        talk.read_rest(_END_S)
        _end(process)
        return Answer(host.address, None, f"cannot be queried (status {process.returncode}){talk.read_last_line()}")
    except ValueError as error:
        return Answer(host.address, None, f"gives an unexpected answer: {shown(error)}")
    finally:
        _end(process)


class _OutputTooLong(Exception):
    """A host sends output without end."""


class _Conversation:
    """Exchanges marked lines with a process until a deadline, however much or little it sends.

    Args:
        process: with pipes for all three streams.
        word: prefix of answers; all other lines (login banners) are kept for messages alone.
        until_s: the deadline, by the monotonic clock.
    """

    def __init__(self, process: subprocess.Popen[bytes], word: bytes, until_s: float) -> None:
        if process.stdin is None or process.stdout is None or process.stderr is None:
            raise ValueError("A conversation needs all three pipes of its process.")
        self._in, self._out, self._err = (pipe.fileno() for pipe in (process.stdin, process.stdout, process.stderr))
        self._word = word
        self._until_s = until_s
        self._received_bytes = 0
        self._rest = bytearray()
        self._has_output = True
        self._has_errors = True  # until that stream has ended
        self._error_tail = b""
        self._last_line = b""
        os.set_blocking(self._in, False)

    def write(self, data: bytes) -> None:
        """Sends all of `data`; reads the process's output meanwhile."""
        left = memoryview(data)
        while left:
            if self._in in self._wait(self._in):
                left = left[os.write(self._in, left[: select.PIPE_BUF]) :]

    def answer(self) -> bytes:
        """Returns the text after the word in the next line that has it."""
        while True:
            line, newline, rest = self._rest.partition(b"\n")
            if newline:
                self._rest = rest
                _, word, reply = bytes(line).partition(self._word)
                if word:
                    return reply
                self._last_line = bytes(line).strip() or self._last_line
            elif not self._has_output:
                self._last_line = bytes(line).strip() or self._last_line
                raise EOFError
            else:
                self._wait()

    def read_rest(self, seconds: float) -> None:
        """Reads the output of a process that ends; its lines are kept for messages."""
        self._until_s = min(self._until_s, time.monotonic() + seconds)
        try:
            while self._has_errors:
                self._wait()
            while True:
                self.answer()
        except (TimeoutError, EOFError, _OutputTooLong):
            return

    def read_last_line(self) -> str:
        """The last line that the process wrote, preferably to stderr, as `: LINE`; empty if there is none."""
        errors = [line for line in self._error_tail.splitlines() if line.strip()]
        line = errors[-1] if errors else self._last_line
        text = shown(line.decode("utf-8", "replace").strip())
        return f": {text[:_SHOWN]}" if text else ""

    def _wait(self, *written: int) -> set[int]:
        """Reads available data; returns those of these descriptors that can be written."""
        poll = select.poll()
        for fd in written:
            poll.register(fd, select.POLLOUT)
        if self._has_output:
            poll.register(self._out, select.POLLIN)
        if self._has_errors:
            poll.register(self._err, select.POLLIN)
        left_s = self._until_s - time.monotonic()
        ready = {fd for fd, _ in poll.poll(max(0.0, left_s) * 1e3)}
        if left_s <= 0 or not ready:  # the clock is checked each time: a process may never stop sending
            raise TimeoutError
        if self._out in ready:
            read = self._read(self._out)
            self._has_output = bool(read)
            self._rest += read
        if self._err in ready:
            read = self._read(self._err)
            self._has_errors = bool(read)
            self._error_tail = (self._error_tail + read)[-_TAIL_BYTES:]
        return ready

    def _read(self, fd: int) -> bytes:
        read = os.read(fd, _READ_BYTES)
        self._received_bytes += len(read)
        if self._received_bytes > MOST_BYTES:
            raise _OutputTooLong
        return read


def _ping(talk: _Conversation) -> Ping:
    """Requests the host's time. The answering clock should be the launching machine's, so the result is inverted."""
    began_ns, sent_us = time.monotonic_ns(), time.time_ns() / 1e3
    talk.write(b"?\n")
    answer = talk.answer()
    if not answer.isdigit() or len(answer) > _CLOCK_DIGITS:
        raise ValueError(f"its clock must be in whole microseconds, got {bytes(answer[:_CLOCK_DIGITS])!r}")
    theirs_us = float(answer)
    half_us = (time.monotonic_ns() - began_ns) / 2e3  # independent of changes of the wall clock
    return Ping(theirs_us - half_us, sent_us + half_us, theirs_us + half_us)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the command, and the processes it has started here; does not wait for its pipes."""
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None and not pipe.closed:
            pipe.close()
    try:
        process.wait(_END_S)  # by itself, at the end of its input
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
