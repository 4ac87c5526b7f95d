"""The supervisor of one rank: starts the worker, sends on what it writes, and ends everything it started.

`python -m parallax.runtime.supervisor.agent [--preload LIBRARY] [--listen ADDRESS] -- PROGRAM ARGS...` runs once per
rank under mpirun and starts `python PROGRAM ARGS...` with the same interpreter. The worker inherits mpirun's
environment, so it may call MPI_Init itself; the supervisor imports neither MPI nor TensorFlow. All it writes are frames
(`parallax.runtime.supervisor.frames`). Rank 0's worker inherits the standard input too, where the launcher's parcel
comes.

The worker is started with the library that `--preload` names (parallax/native/preload/). In a job with servers,
`--listen` names the host's own address, to which the library keeps TensorFlow's servers.

Exit status: the worker's own, or 128 + n when signal n ended it; mpirun ends the other ranks when it is not 0. 127 when
the worker could not be started. The worker dies with the supervisor (SIGKILL), the supervisor with mpirun (SIGTERM).
"""

from __future__ import annotations

import codecs
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType

from parallax.runtime.supervisor.control import CONTROL_FD
from parallax.runtime.supervisor.frames import Control, Exit, Frame, Start, Text, encode_frame
from parallax.runtime.supervisor.listening import CannotListen, check_library, listening_variables
from parallax.runtime.supervisor.preload import forget_preloaded, preloaded
from parallax.runtime.supervisor.processes import JOB_ID, die_with_parent, end_processes
from parallax.runtime.supervisor.scratch import remove_scratch, scratch_patterns

RANK = "OMPI_COMM_WORLD_RANK"  # set by mpirun

IDLE_S = 0.2  # text without a newline waits this long for the rest of its line (progress bars, prompts)
# From SIGTERM to SIGKILL. mpirun itself kills a supervisor one second after its SIGTERM.
GRACE_S = 0.6
LINGER_S = 1.0
CANNOT_START = 127

_READ_BYTES = 1 << 16
_DRAIN_BYTES = 1 << 20  # no pipe holds more, so a dead worker's last words are not longer


def main(arguments: list[str]) -> int:
    """Runs `python PROGRAM ARGS...` as the worker of this rank until it ends.

    Returns:
        The exit status for mpirun (see above).
    """
    options, program = _split(arguments)
    if RANK not in os.environ or not program or set(options) - {"--preload", "--listen"}:
        sys.stderr.write(
            "usage, under mpirun: "
            "python -m parallax.runtime.supervisor.agent [--preload LIBRARY] [--listen ADDRESS] -- PROGRAM ARGS...\n"
        )
        return 2
    rank, daemon = int(os.environ[RANK]), os.getppid()
    secret = forget_preloaded()  # mpirun's
    die_with_parent(signal.SIGTERM)
    _leave_guard(rank)
    worker = _Worker(rank)
    wake_fd = _install_signals(worker)
    try:
        worker.variables = _variables(options, rank, secret)
        status = _supervise(worker, program, rank, wake_fd)
    except _Lost:
        worker.kill()
        _end_strays(rank)
        status = -signal.SIGKILL
    except CannotListen as error:
        _write(Text(rank, "stderr", f"{error}\n"), Exit(rank, CANNOT_START))
        return CANNOT_START
    if os.getppid() != daemon:  # mpirun's daemon on this host was killed, and cannot do it
        remove_scratch(scratch_patterns(os.environ))
    elif status != 0:
        _linger(worker)
    return status if status >= 0 else 128 - status


def _split(arguments: list[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The supervisor's own options, each with its value, and the program."""
    if "--" not in arguments:
        return {}, ()
    cut = arguments.index("--")
    return dict(zip(arguments[:cut:2], arguments[1:cut:2], strict=False)), tuple(arguments[cut + 1 :])


def _variables(options: Mapping[str, str], rank: int, secret: Mapping[str, str]) -> dict[str, str]:
    """What the worker's environment has besides its own."""
    library = options.get("--preload", "")
    if secret:
        check_library(library)
    found = listening_variables(options["--listen"], library) if "--listen" in options else {}
    if Path(library).is_file():
        return {**found, **secret, **preloaded(library, os.environ)}
    if library:
        where = f"{library} is not on {socket.gethostname()}"
        _write(Text(rank, "stderr", f"{where}: this rank will keep a core busy while it waits (`make install`).\n"))
    return found


def _supervise(worker: _Worker, program: tuple[str, ...], rank: int, wake_fd: int) -> int:
    control_read, control_write = os.pipe()
    try:
        process = worker.start(program, control_write)
    except OSError as error:
        _write(Text(rank, "stderr", f"cannot start {sys.executable}: {error}\n"))
        _write(Exit(rank, CANNOT_START))
        return CANNOT_START
    os.close(control_write)
    _write(Start(rank, os.getpid(), process.pid, socket.gethostname(), scratch_patterns(os.environ)))
    channels: dict[int, _TextChannel | _ControlChannel] = {control_read: _ControlChannel(rank)}
    for stream, pipe in (("stdout", process.stdout), ("stderr", process.stderr)):
        if pipe is not None:
            channels[pipe.fileno()] = _TextChannel(rank, stream)
    _forward(worker, channels, wake_fd)
    worker.kill()  # what is left in its process group
    for fd, channel in channels.items():
        _drain(fd, channel)
    status = process.wait()
    _end_strays(rank)
    _write(Exit(rank, status, worker.told))
    return status


def _install_signals(worker: _Worker) -> int:
    """Sets the handlers; every signal also makes the returned descriptor readable, so no wait misses one."""
    wake_fd, written_fd = os.pipe()
    for fd in (wake_fd, written_fd):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(written_fd, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, worker.end)
    signal.signal(signal.SIGALRM, worker.kill)
    return wake_fd


def _forward(worker: _Worker, channels: Mapping[int, _TextChannel | _ControlChannel], wake_fd: int) -> None:
    """Sends on what the worker writes until it is dead. Its pipes may live longer, in its children."""
    with selectors.DefaultSelector() as selector:
        selector.register(wake_fd, selectors.EVENT_READ, None)
        for fd, channel in channels.items():
            selector.register(fd, selectors.EVENT_READ, channel)
        while not worker.has_ended():
            waiting = any(channel.waiting for channel in channels.values())
            for key, _ in selector.select(IDLE_S if waiting else None):
                data = os.read(key.fd, _READ_BYTES)
                if key.data is None:
                    continue
                if not data:
                    selector.unregister(key.fd)
                _write(*key.data.feed(data))
            for channel in channels.values():
                _write(*channel.rest(last=False))


def _drain(fd: int, channel: _TextChannel | _ControlChannel) -> None:
    """Sends on what the pipe still holds, whoever has its other end open."""
    os.set_blocking(fd, False)
    left_bytes = _DRAIN_BYTES
    while left_bytes > 0:
        try:
            data = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            break
        if not data:
            break
        left_bytes -= len(data)
        _write(*channel.feed(data))
    _write(*channel.rest(last=True))


def _linger(worker: _Worker) -> None:
    """Leaves the launcher time to end the job first.

    mpirun, when a rank fails, stops reading all others for a while: what they write then comes in any order, and the
    launcher could take a consequence for the cause.
    """
    deadline_s = time.monotonic() + LINGER_S
    while not worker.told and time.monotonic() < deadline_s:
        time.sleep(0.02)


def _leave_guard(rank: int) -> None:
    """Leaves a process behind that ends the worker's own processes when this one is killed and cannot.

    On the launcher's host the launcher would do it; no other host has one.
    """
    guarded_fd, held_fd = os.pipe()
    if os.fork() != 0:
        os.close(guarded_fd)  # `held_fd` stays open until this process ends, and nobody inherits it
        return
    os.setsid()
    os.close(held_fd)
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):  # mpirun waits until nobody holds its pipes
        os.dup2(nothing, fd)
    os.read(guarded_fd, 1)
    _end_strays(rank)
    os._exit(0)


def _end_strays(rank: int) -> None:
    """Kills what the worker started in process groups of its own, and the guard, which has nothing to do any more."""
    job_id = os.environ.get(JOB_ID)
    if job_id:
        end_processes({JOB_ID: job_id, RANK: str(rank)}, grace_s=0)


def _write(*frames: Frame) -> None:
    data = memoryview(b"".join(encode_frame(frame) for frame in frames))
    try:
        while data:
            data = data[os.write(1, data) :]
    except OSError as error:  # EIO or EPIPE
        raise _Lost from error


class _Lost(Exception):
    """Nobody reads what the supervisor writes: mpirun is dead."""


class _Worker:
    """The worker's process group, and the signal handlers that end it."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self.variables: dict[str, str] = {}
        self.told = False
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, program: tuple[str, ...], control_fd: int) -> subprocess.Popen[bytes]:
        supervisor = os.getpid()

        def tie() -> None:  # between fork and exec; the supervisor has no threads
            die_with_parent(signal.SIGKILL)
            if os.getppid() != supervisor:
                os.kill(os.getpid(), signal.SIGKILL)

        # Python would hold back output to a pipe until 8 KiB have come together.
        environment = {"PYTHONUNBUFFERED": "1", **os.environ, **self.variables, CONTROL_FD: str(control_fd)}
        self.process = subprocess.Popen(
            [sys.executable, *program],
            stdin=None if self._rank == 0 else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            pass_fds=(control_fd,),
            start_new_session=True,
            preexec_fn=tie,
        )
        if self.told:  # while it was being started
            self.end()
        return self.process

    def end(self, number: int = signal.SIGTERM, frame: FrameType | None = None) -> None:
        """SIGTERM now, SIGKILL after a grace; in a handler, for the main program may hang in a write."""
        self.told = True
        self._signal(signal.SIGTERM)
        signal.setitimer(signal.ITIMER_REAL, GRACE_S)

    def kill(self, number: int = signal.SIGKILL, frame: FrameType | None = None) -> None:
        self._signal(signal.SIGKILL)

    def has_ended(self) -> bool:
        """Whether the worker is dead. It is not waited for, so no other process group can have its number yet."""
        if self.process is None:
            return True
        return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _signal(self, number: int) -> None:
        if self.process is not None and self.process.returncode is None:
            try:
                os.killpg(self.process.pid, number)
            except ProcessLookupError:
                pass


class _TextChannel:
    """The worker's stdout or stderr: sent on in whole lines, or after a pause."""

    def __init__(self, rank: int, stream: str) -> None:
        self._rank = rank
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self.waiting = ""
        self._since_s = 0.0

    def feed(self, data: bytes) -> Iterator[Frame]:
        text = self.waiting + self._decoder.decode(data)
        cut = max(text.rfind("\n"), text.rfind("\r")) + 1
        if len(text) - cut > _READ_BYTES:
            cut = len(text)
        self.waiting = text[cut:]
        self._since_s = time.monotonic()
        if cut:
            yield Text(self._rank, self._stream, text[:cut])

    def rest(self, last: bool) -> Iterator[Frame]:
        if last:
            self.waiting += self._decoder.decode(b"", True)
        if self.waiting and (last or time.monotonic() - self._since_s >= IDLE_S):
            yield Text(self._rank, self._stream, self.waiting)
            self.waiting = ""


class _ControlChannel:
    """The worker's messages, one JSON object a line."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self.waiting = b""

    def feed(self, data: bytes) -> Iterator[Frame]:
        *lines, self.waiting = (self.waiting + data).split(b"\n")
        for line in lines:
            try:
                message = dict(json.loads(line))
            except (ValueError, TypeError):  # not one of ours: some other process writes to the pipe
                yield Text(self._rank, "stderr", f"not a control message: {line.decode('utf-8', 'replace')}\n")
            else:
                yield Control(self._rank, message)

    def rest(self, last: bool) -> Iterator[Frame]:
        return iter(())  # half a message of a dead worker says nothing


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
