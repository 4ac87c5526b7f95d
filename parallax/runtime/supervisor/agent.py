"""The supervisor of one rank: starts the worker, forwards its output, and terminates everything it started.

`python -m parallax.runtime.supervisor.agent [--preload LIBRARY] [--listen ADDRESS] [--start fork] -- PROGRAM ARGS...`
runs once per rank under mpirun and starts `python PROGRAM ARGS...` with the same interpreter; with `--start fork` the
host's fork server forks it (`worker_process.py`). The worker inherits mpirun's environment, so it may call MPI_Init
itself; the supervisor imports neither MPI nor TensorFlow. It writes nothing but frames
(`parallax.runtime.supervisor.frames`). Rank 0's worker also inherits the standard input, on which the launcher sends
the job message. `state_machine.py` decides what the supervisor does; this module is the loop that executes the
decisions.

The launcher signals that it is alive with SIGURG, which mpirun forwards to all ranks. If the signal does not arrive for
`--unheard` seconds, counted from the supervisor's start, the launcher is gone or unreachable: the supervisor then
terminates its worker, mpirun's daemon on this host, and itself. A preemption is signalled by SIGWINCH, and passed to
rank 0's worker by a pipe.

The worker is started with the library that `--preload` names (parallax/native/preload/). In a job with servers,
`--listen` names the host's own address, and the library makes TensorFlow's servers listen there only.

Exit status: the worker's own, or 128 + n when signal n ended it; mpirun ends the other ranks when it is not 0. 127 when
the worker could not be started. The worker dies with the supervisor (SIGKILL), by the kernel or by its fork server; the
supervisor dies with mpirun (SIGTERM).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from parallax.runtime.supervisor.control import CONTROL_FD, PREEMPTION_FD
from parallax.runtime.supervisor.frames import Exit, Frame, Start, Text
from parallax.runtime.supervisor.host_checks import NoSpace, check_room, listening_variables
from parallax.runtime.supervisor.limits import LIMITS, PREEMPTION, WORD, Limits
from parallax.runtime.supervisor.pipes import IDLE_S, READ_BYTES, Channel, ControlChannel, Outbox, TextChannel
from parallax.runtime.supervisor.preload import CannotListen, check_library, forget_preloaded, preload_variables
from parallax.runtime.supervisor.processes import (
    JOB_ID,
    RANK,
    die_with_parent,
    end_processes,
    remove_scratch,
    scratch_patterns,
    vitals_of,
)
from parallax.runtime.supervisor.state_machine import (
    HeartbeatReceived,
    KeepaliveReceived,
    Leave,
    PreemptionReceived,
    ReaderGone,
    SignalReceived,
    SignalWorker,
    SupervisorEvent,
    SupervisorState,
    TellPreemption,
    TimePassed,
    VitalsSampled,
    WorkerEnded,
    step,
)
from parallax.runtime.supervisor.worker_process import FORK, WORKER_DEFAULTS, WorkerOrder, WorkerProcess, start_worker

LINGER_S = 1.0
CANNOT_START = 127

_DRAIN_BYTES = 1 << 20  # no pipe holds more, so a dead worker's last output is not longer
_DAEMON_GRACE_S = 1.0
_POLL_S = 0.02
_ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_OPTIONS = ("--preload", "--listen", "--start", "--beat", "--unheard")


def main(arguments: list[str]) -> int:
    """Runs `python PROGRAM ARGS...` as the worker of this rank until it ends.

    Returns:
        The exit status for mpirun (see above).
    """
    options, program = _split(arguments)
    if RANK not in os.environ or not program or set(options) - {*_OPTIONS}:
        sys.stderr.write(
            "usage, under mpirun: python -m parallax.runtime.supervisor.agent "
            "[--preload LIBRARY] [--listen ADDRESS] [--start fork] [--beat S] [--unheard S] -- PROGRAM ARGS...\n"
        )
        return 2
    rank, daemon = int(os.environ[RANK]), os.getppid()
    secret = forget_preloaded()  # mpirun's
    die_with_parent(signal.SIGTERM)
    _leave_guard(rank)
    wake_fd = _install_signals()
    supervisor = _Supervisor(rank, _limits(options), wake_fd)
    try:
        check_room(os.environ)
        variables = _variables(options, rank, secret, supervisor.put)
        left = supervisor.run(program, variables, options.get("--start") == FORK)
    except (CannotListen, NoSpace) as error:
        supervisor.put(Text(rank, "stderr", f"{error}\n"), Exit(rank, CANNOT_START))
        left = Leave(CANNOT_START, False)
    supervisor.flush()
    _end_strays(rank)
    if left.orphaned and os.getppid() == daemon:
        _end_daemon(daemon)
    if os.getppid() != daemon:  # mpirun's daemon on this host was killed, and cannot do it
        remove_scratch(scratch_patterns(os.environ))
    elif left.status != 0:
        _linger(wake_fd, supervisor.state.is_end_requested)
    return left.status


def _split(arguments: list[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The supervisor's own options, each with its value, and the program."""
    if "--" not in arguments:
        return {}, ()
    cut = arguments.index("--")
    return dict(zip(arguments[:cut:2], arguments[1:cut:2], strict=False)), tuple(arguments[cut + 1 :])


def _limits(options: Mapping[str, str]) -> Limits:
    """The job's limits that a supervisor enforces."""
    beat_s, unheard_s = options.get("--beat", LIMITS.beat_s), options.get("--unheard", LIMITS.unheard_s)
    return Limits(beat_s=float(beat_s), unheard_s=float(unheard_s))


def _variables(
    options: Mapping[str, str], rank: int, secret: Mapping[str, str], put: Callable[[Frame], None]
) -> dict[str, str]:
    """Returns the variables that are added to the worker's environment."""
    library = options.get("--preload", "")
    if secret:
        check_library(library)
    variables = {}
    if "--listen" in options:
        variables = listening_variables(options["--listen"], library)
    if Path(library).is_file():
        return {**variables, **secret, **preload_variables(library, os.environ)}
    if library:
        where = f"{library} is not on {socket.gethostname()}"
        put(Text(rank, "stderr", f"{where}: this rank will keep a core busy while it waits (`parallax setup`).\n"))
    return variables


def _install_signals() -> int:
    """Installs signal handlers and returns a descriptor of the signal numbers, so that no wait misses a signal."""
    wake_fd, written_fd = os.pipe()
    for fd in (wake_fd, written_fd):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(written_fd, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, WORD, PREEMPTION, *_ENDS):
        signal.signal(number, lambda number, frame: None)
    return wake_fd


class _Supervisor:
    """The supervisor's loop: waits for events, passes them to the state machine, and executes its actions."""

    def __init__(self, rank: int, limits: Limits, wake_fd: int) -> None:
        self.state = SupervisorState(rank, time.monotonic(), limits)
        self._wake_fd = wake_fd
        self._outbox = Outbox(1)
        self._process: WorkerProcess | None = None
        self._channels: dict[int, Channel] = {}
        self._left: Leave | None = None
        self._preemption_fd: int | None = None
        self._notified_pid = 0

    def run(self, program: tuple[str, ...], variables: Mapping[str, str], is_forked: bool) -> Leave:
        """Starts the worker and returns once it and its whole process group have ended."""
        rank = self.state.rank
        try:
            self._start(program, variables, is_forked)
        except OSError as error:
            self.put(Text(rank, "stderr", f"cannot start {sys.executable}: {error}\n"), Exit(rank, CANNOT_START))
            return Leave(CANNOT_START, False)
        open_fds = set(self._channels)
        while not self._has_ended():
            self._wait(open_fds)
        self._signal(signal.SIGKILL)  # the rest of its process group; pipes may stay open longer, in its children
        for fd, channel in self._channels.items():
            self._drain(fd, channel)
        self._step(WorkerEnded(self._process.wait() if self._process else 0))
        return self._left or Leave(CANNOT_START, False)

    def put(self, *frames: Frame) -> None:
        """Sends frames; terminates the worker when they have no reader."""
        try:
            self._outbox.put(*frames)
        except OSError:
            if not self.state.orphaned:
                self._step(ReaderGone())

    def flush(self) -> None:
        """Waits until mpirun has read all frames, while there may be a launcher."""
        deadline_s = time.monotonic() + (0.0 if self.state.orphaned else self.state.limits.unheard_s)
        while not self._outbox.is_empty and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)
            self.put()

    def _start(self, program: tuple[str, ...], variables: Mapping[str, str], is_forked: bool) -> None:
        rank = self.state.rank
        channels: dict[str, Channel] = {CONTROL_FD: ControlChannel(rank)}
        pipes = {name: os.pipe() for name in channels}
        environment = {**WORKER_DEFAULTS, **os.environ, **variables}
        environment |= {name: str(written) for name, (_, written) in pipes.items()}
        write_ends = [written for _, written in pipes.values()]
        if rank == 0:
            read, self._preemption_fd = os.pipe()
            os.set_blocking(read, False)
            environment[PREEMPTION_FD] = str(read)
            write_ends.append(read)
        self._process = start_worker(WorkerOrder(program, environment, 0 if rank == 0 else None, write_ends), is_forked)
        for fd in write_ends:
            os.close(fd)
        self._report_start()
        self._channels = {pipes[name][0]: channel for name, channel in channels.items()}
        for stream, fd in self._process.streams.items():
            self._channels[fd] = TextChannel(rank, stream)

    def _report_start(self) -> None:
        if self._process is not None:
            self._notified_pid = self._process.pid
            host, scratch = socket.gethostname(), scratch_patterns(os.environ)
            self.put(Start(self.state.rank, os.getpid(), self._process.pid, host, scratch))

    def _wait(self, open_fds: set[int]) -> None:
        """Processes events until at least one occurred or an action is due; removes closed pipes from `open_fds`."""
        is_held = self._outbox.is_full  # then the worker's output has to wait
        readers = [fd for fd in open_fds if not (is_held and self._channels[fd].may_wait)]
        writers = [] if self._outbox.is_empty else [self._outbox.fd]
        idle = any(channel.waiting for channel in self._channels.values())
        due_s = max(0.0, self.state.due_s - time.monotonic())
        news = [self._process.news_fd] if self._process and self._process.news_fd is not None else []
        ready = select.select([self._wake_fd, *news, *readers], writers, [], min(due_s, IDLE_S) if idle else due_s)
        for fd in ready[0]:
            if fd in news:
                if self._process:
                    self._process.take_news()
                continue
            data = os.read(fd, READ_BYTES)
            if fd == self._wake_fd:
                self._take_signals(data)
            elif data:
                self._process_data(self._channels[fd], data)
            else:
                open_fds.discard(fd)
        self.put(*(frame for channel in self._channels.values() for frame in channel.rest(last=False)))
        is_due = time.monotonic() >= self.state.sampled_s + self.state.limits.beat_s
        self._step(VitalsSampled(vitals_of(self._process.pid)) if is_due and self._process else TimePassed())
        if self._process and self._process.pid != self._notified_pid:
            self._report_start()

    def _process_data(self, channel: Channel, data: bytes) -> None:
        for event in channel.feed(data):
            if isinstance(event, HeartbeatReceived):
                self._step(event)
            else:
                self.put(event)

    def _take_signals(self, numbers: bytes) -> None:
        for number in numbers:
            if number == WORD:
                self._step(KeepaliveReceived())
            elif number == PREEMPTION:
                self._step(PreemptionReceived())
            elif number in _ENDS:
                self._step(SignalReceived(number))

    def _drain(self, fd: int, channel: Channel) -> None:
        """Forwards the data left in the pipe, even if another process still has its other end open."""
        os.set_blocking(fd, False)
        left_bytes = _DRAIN_BYTES
        while left_bytes > 0:
            try:
                data = os.read(fd, READ_BYTES)
            except BlockingIOError:
                break
            if not data:
                break
            left_bytes -= len(data)
            self._process_data(channel, data)
        self.put(*channel.rest(last=True))

    def _step(self, event: SupervisorEvent) -> None:
        self.state, actions = step(self.state, event, time.monotonic())
        for action in actions:
            if isinstance(action, SignalWorker):
                self._signal(action.number)
            elif isinstance(action, TellPreemption):
                self._tell_preemption()
            elif isinstance(action, Leave):
                self._left = action
            else:
                self.put(action.frame)

    def _tell_preemption(self) -> None:
        """Notifies worker 0, which notifies the others."""
        if self._preemption_fd is not None:
            with contextlib.suppress(BrokenPipeError):  # the worker has ended
                os.write(self._preemption_fd, b"1")

    def _has_ended(self) -> bool:
        """Whether the worker is dead; no other process group can have its number yet."""
        return self._process is None or self._process.has_ended()

    def _signal(self, number: int) -> None:
        if self._process is not None:
            self._process.signal(number)


def _linger(wake_fd: int, is_end_requested: bool) -> None:
    """Leaves the launcher time to end the job first.

    mpirun, when a rank fails, stops reading all others for a while: their output then arrives in any order, and the
    launcher could mistake a consequence for the cause.
    """
    deadline_s = time.monotonic() + LINGER_S
    while not is_end_requested and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)
        try:
            is_end_requested = bool({*os.read(wake_fd, READ_BYTES)} & {*_ENDS})
        except BlockingIOError:
            continue


def _end_daemon(daemon: int) -> None:
    """Terminates mpirun's daemon on this host, or mpirun itself, when no launcher can reach it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline_s = time.monotonic() + _DAEMON_GRACE_S
        if os.getppid() == daemon:
            os.kill(daemon, number)
        while os.getppid() == daemon and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)


def _leave_guard(rank: int) -> None:
    """Starts a guard process that terminates the worker's own processes if this supervisor is killed and cannot do it.

    On the launcher's host the launcher would do it; other hosts have no launcher.
    """
    guarded_fd, held_fd = os.pipe()
    if os.fork() != 0:
        os.close(guarded_fd)  # `held_fd` stays open until this process ends, and is not inherited
        return
    os.setsid()
    os.close(held_fd)
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):  # mpirun waits until no process holds its pipes
        os.dup2(nothing, fd)
    os.read(guarded_fd, 1)
    _end_strays(rank)
    os._exit(0)


def _end_strays(rank: int) -> None:
    """Kills the processes that the worker started in their own process groups, and the guard, which is obsolete."""
    job_id = os.environ.get(JOB_ID)
    if job_id:
        end_processes({JOB_ID: job_id, RANK: str(rank)}, grace_s=0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
