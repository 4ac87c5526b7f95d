"""Starts a job with mpirun, relays the output of its ranks, and ends the whole job when one part fails.

Exit statuses that `launch` returns:
    0            every rank ended with 0.
    1 to 125     the exit status of the first rank that failed; 1 also when it failed without one.
    75           preempted: the launcher got SIGTERM, the workers wrote a checkpoint, and the job can be started again
                 (`EXIT_PREEMPTED`; EX_TEMPFAIL of sysexits.h).
    124          the job stalled: ranks waited for others that did not come, or a process was silent, or a
               checkpoint folder did not answer (`EXIT_STALLED`).
    127          a rank's program could not be started.
    128 + n      the first rank that failed was killed by signal n (137: SIGKILL), or mpirun got it;
                 or the launcher got signal n and ended the job (130: Ctrl-C, 143: SIGTERM, nothing was saved);
                 141: the launcher's output has no reader any more.
A rank's own exit status is passed on whatever it is, so a script that uses these numbers itself makes them ambiguous;
the message on stderr is not.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import IO, BinaryIO

from parallax.runtime.launcher.early_server import take_early_server
from parallax.runtime.launcher.failures.cause import EndCause, Progress
from parallax.runtime.launcher.failures.end_of_job import (
    EXIT_PREEMPTED,
    EXIT_STALLED,
    GRACE_S,
    FrameReceived,
    FramesDrained,
    HostsReturned,
    JobEvent,
    MpirunSignalled,
    SignalMpirun,
    StopsSampled,
    new_job,
    process_line,
    step,
)
from parallax.runtime.launcher.failures.ending_signals import ENDING, caught_signals
from parallax.runtime.launcher.failures.first_failure import Ending
from parallax.runtime.launcher.job import Job
from parallax.runtime.launcher.job_input import JobInput
from parallax.runtime.launcher.mpirun import mpirun_argv, mpirun_environment, passes_preemption_on, this_launcher
from parallax.runtime.launcher.output.output_files import OutputFiles
from parallax.runtime.launcher.output.relay import Relay, bytes_of
from parallax.runtime.launcher.reach import check_reachable
from parallax.runtime.launcher.startable import check_startable
from parallax.runtime.supervisor.control import DamagedMessage
from parallax.runtime.supervisor.frames import Control, Demultiplexer, Start, Text, read_frame
from parallax.runtime.supervisor.limits import WORD
from parallax.runtime.supervisor.processes import (
    JOB_ID,
    STOPPED,
    end_processes,
    mpirun_scratch,
    pending_signals,
    remove_scratch,
    tied_argv,
    vitals_of,
)
from parallax.runtime.supervisor.state_machine import ReaderGone, SignalReceived

__all__ = ["EXIT_PREEMPTED", "EXIT_STALLED", "Contact", "JobEnd", "launch"]

_STRAY_GRACE_S = 2.0  # for supervisors to end their workers when mpirun was killed
_LAST_WORDS_S = 1.0  # after mpirun's death, for output in flight
_POLL_S = 0.1
_READ_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class JobEnd:
    """The end of a job.

    Attributes:
        status: its exit status (see above).
        cause: the kind of the end.
        reason: the user message about it, in a line.
        progress: its progress.
    """

    status: int
    cause: EndCause = EndCause()
    reason: str = ""
    progress: Progress = Progress()


@dataclass
class Contact:
    """State shared between a job's launching thread and the thread that waits for it.

    Attributes:
        signals: those that must end the job; the waiting thread appends them.
        input: the pieces that rank 0 reads on its standard input, for a job whose own input is empty: they arrive
            later.
        progress: the job's progress; updated by the launching thread.
        shall_yield: whether it must save and end, to continue on more hosts; set by the waiting thread.
    """

    signals: list[int]
    input: JobInput | None = None
    progress: Progress = field(default_factory=Progress)
    shall_yield: bool = False


def launch(
    job: Job, stdout: BinaryIO | None = None, stderr: BinaryIO | None = None, contact: Contact | None = None
) -> JobEnd:
    """Runs `job` on its hosts until it has ended, and leaves none of its processes behind.

    Args:
        job: the job to run.
        stdout: stream of the ranks' output; the process's own by default.
        stderr: stream of their errors and the launcher's messages.
        contact: of a job that runs in its own thread; without one, signals to this process end the job.

    Returns:
        The end of the job.

    Raises:
        LaunchError: mpirun, or something else that the job needs on this machine, is missing, a host cannot be reached,
            or a file for the ranks' output cannot be made.
    """
    launcher = this_launcher()
    check_startable(job, launcher)
    sinks = stdout or bytes_of(sys.stdout), stderr or bytes_of(sys.stderr)
    signals = contact.signals if contact is not None else []
    check_reachable(job, launcher, partial(_tell, sinks[1]), lambda: bool(signals))
    sys.stdout.flush()
    files = OutputFiles(job.output_folder, job.rank_names) if job.output_folder is not None else None
    relay = Relay(*sinks, job.label_of, files, job.framework_log)
    watch = _Watch(job, relay, contact or Contact([]))
    catching = caught_signals() if contact is None else contextlib.nullcontext(contact.signals)
    with catching as caught:
        early = take_early_server(job, launcher)
        job_id, secret = (early.job_id, early.secret) if early else (uuid.uuid4().hex, secrets.token_hex(32))
        environment = mpirun_environment(job, job_id, secret, launcher)
        job_input = watch.contact.input or JobInput()
        try:
            process = _start(mpirun_argv(job, launcher), environment, job_input)
        except BaseException:
            if early is not None:
                early.close()
            raise
        if any(job.input):
            job_input.send(job.input)
        elif watch.contact.input is None:
            job_input.close()  # rank 0 sees the end of file at once
        ended = threading.Event()
        speaker = threading.Thread(
            target=_send_keepalives, args=(process, watch, ended), name="parallax-word", daemon=True
        )
        try:
            speaker.start()
            ending = _run(process, watch, caught)
        finally:
            ended.set()
            speaker.join()
            _end(process)
            if early is not None:
                early.close()
            left = end_processes({JOB_ID: job_id}, _STRAY_GRACE_S)
            job_input.close()
            if process.returncode < 0:
                remove_scratch({*watch.scratch, mpirun_scratch(environment, process.pid)})
    reason = ending.message.partition("\n")[0].partition(" The job was ended.")[0].rstrip(".")
    return JobEnd(_report(ending, left, relay), ending.cause, reason, watch.contact.progress)


class _Watch:
    """The state of a running job and its output."""

    def __init__(self, job: Job, relay: Relay, contact: Contact) -> None:
        self.relay = relay
        self.contact = contact
        ranks = range(job.num_ranks)
        names, hosts = tuple(map(job.name_of, ranks)), tuple(map(job.host_of, ranks))
        now_s = time.monotonic()
        grace_s = job.preemption_grace_s if passes_preemption_on(job.cluster) else None
        self.state = new_job(names, hosts, job.num_workers, job.stall_timeout_s, job.limits, now_s, grace_s)
        self.scratch: set[str] = set()
        self._agents: dict[int, int] = {}  # supervisors on this machine: rank -> process
        self._num_ranks = job.num_ranks
        self._damaged: set[int] = set()  # ranks for which that is reported
        self._sampled_s = now_s
        self._stdout = Demultiplexer()
        self._stderr = Demultiplexer()

    def step(self, event: JobEvent) -> tuple[SignalMpirun, ...]:
        """Processes an event; returns the actions to execute."""
        self.state, actions = step(self.state, event, time.monotonic())
        return actions

    def take_stdout(self, data: bytes) -> None:
        """Processes mpirun's stdout: the supervisors' frames."""
        for rank, line in self._stdout.feed(data) if data else self._stdout.close():
            with self._printing():
                self._take_frame(rank, line, time.monotonic(), is_whole=bool(data))

    def take_stderr(self, data: bytes) -> None:
        """Processes mpirun's stderr: its own messages, or those of a supervisor that failed."""
        for rank, line in self._stderr.feed(data) if data else self._stderr.close():
            text = line.decode("utf-8", "surrogateescape")
            with self._printing():
                if rank is None:
                    self._say(text)
                else:
                    self.relay.write(rank, "stderr", text + "\n", time.monotonic())

    def tick(self) -> None:
        """Prints the output that is due."""
        with self._printing():
            self.relay.tick(time.monotonic())

    def close(self) -> None:
        """Prints unfinished lines."""
        with self._printing():
            self.relay.close()

    def look(self, mpirun_pid: int, signals: Sequence[int]) -> tuple[SignalMpirun, ...]:
        """Processes what the launcher observes by itself; returns the actions to execute."""
        now_s = time.monotonic()
        if now_s >= self._sampled_s + self.state.alive.limits.beat_s:
            self._sampled_s = now_s
            stopped = tuple(rank for rank, pid in self._agents.items() if vitals_of(pid).state == STOPPED)
            self.step(StopsSampled(stopped, vitals_of(mpirun_pid).state == STOPPED))
        for number in pending_signals(mpirun_pid, ENDING):
            self.step(MpirunSignalled(number))
        new = signals[len(self.state.signals) :]
        for number in new:
            self.step(SignalReceived(number))
        if self.contact.shall_yield and not self.state.shall_yield:
            self.step(HostsReturned())
        return self.step(FramesDrained())

    def _take_frame(self, rank: int | None, line: bytes, now_s: float, is_whole: bool) -> None:
        """Processes a line; an incomplete one was cut off by its supervisor's death, and is ignored."""
        try:
            frame = read_frame(line)
        except DamagedMessage as error:
            if rank is None:
                self._say(line.decode("utf-8", "surrogateescape"))
            elif is_whole:
                self._say_damaged(rank, error)
            return
        if frame.rank >= self._num_ranks:
            self._say_damaged(frame.rank, DamagedMessage(f"the job has ranks 0 to {self._num_ranks - 1}"))
            return
        self.step(FrameReceived(frame))
        self.contact.progress = self.contact.progress.observe(frame)
        if isinstance(frame, Text):
            self.relay.write(frame.rank, frame.stream, frame.text, now_s)
        elif isinstance(frame, Control):
            if frame.message.get("kind") == "failed":  # printed once for all, at the end
                self.relay.keep(frame.rank, str(frame.message.get("error", "")))
        elif isinstance(frame, Start) and frame.host == socket.gethostname():
            self.scratch.update(frame.scratch)
            self._agents[frame.rank] = frame.agent_pid

    @contextlib.contextmanager
    def _printing(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:  # mpirun is still read to its end, because it would not end otherwise
            self.step(ReaderGone())
            self.relay.drop_unread()

    def _say_damaged(self, rank: int, error: DamagedMessage) -> None:
        """Reports once per rank that its supervisor's message cannot be read; the job continues without it."""
        if rank not in self._damaged:
            self._damaged.add(rank)
            self.relay.say(f"parallax: a message of rank {rank}'s supervisor was dropped: {error}.")

    def _say(self, text: str) -> None:
        self.state, lines = process_line(self.state, text)
        for line in lines:
            self.relay.say(f"[mpirun] {line}")


def _tell(sink: BinaryIO, text: str) -> None:
    with contextlib.suppress(BrokenPipeError):  # detected again as soon as a rank writes
        sink.write(f"parallax: {text}\n".encode())
        sink.flush()


def _start(argv: list[str], environment: dict[str, str], job_input: JobInput) -> subprocess.Popen[bytes]:
    with job_input.read_end:
        return subprocess.Popen(
            # SIGTERM, not SIGKILL: mpirun then ends its ranks and removes its files.
            tied_argv(sys.executable, argv, os.getpid(), signal.SIGTERM, ENDING),
            stdin=job_input.read_end,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # so that Ctrl-C reaches the launcher alone
        )


def _run(process: subprocess.Popen[bytes], watch: _Watch, caught: list[int]) -> Ending:
    """Relays output until mpirun has ended; ends mpirun when a rank failed, the job stalled or a signal arrived."""
    read_until_s = float("inf")
    with selectors.DefaultSelector() as selector:
        for pipe, take in ((process.stdout, watch.take_stdout), (process.stderr, watch.take_stderr)):
            if pipe is not None:
                selector.register(pipe, selectors.EVENT_READ, take)
        while time.monotonic() < read_until_s and (selector.get_map() or process.poll() is None):
            for key, _ in selector.select(_POLL_S):
                data = os.read(key.fd, _READ_BYTES)
                if not data:
                    selector.unregister(key.fileobj)
                key.data(data)
            watch.tick()
            for action in watch.look(process.pid, caught):
                process.send_signal(action.number)
            if process.poll() is not None:
                read_until_s = min(read_until_s, time.monotonic() + _LAST_WORDS_S)
    watch.close()
    return watch.state.conclude(process.wait(), watch.relay.tail)


def _send_keepalives(process: subprocess.Popen[bytes], watch: _Watch, ended: threading.Event) -> None:
    """Makes mpirun forward the keepalive signal at intervals, in a thread: printing may block the launcher's loop."""
    # Before a rank has started, mpirun may have neither its handlers nor daemons to forward the signal.
    while watch.state.alive.first_s is None and not has_written(process.stdout) and not ended.wait(_POLL_S):
        pass
    while not ended.is_set():
        process.send_signal(WORD)
        ended.wait(watch.state.alive.limits.word_s)


def has_written(pipe: IO[bytes] | None) -> bool:
    """Whether a pipe has data to read: a launcher that is blocked does not read the ranks' messages."""
    if pipe is None:
        return False
    poll = select.poll()  # a script may have more files open than select() takes
    poll.register(pipe, select.POLLIN)
    return bool(poll.poll(0))


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends mpirun if it still runs, which is when the launcher itself failed, and closes its pipes."""
    process.terminate()
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def _report(ending: Ending, left: tuple[int, ...], relay: Relay) -> int:
    message = ending.message
    if left:
        message += f"\nThese processes of the job cannot be killed: {', '.join(map(str, left))}."
    if message:
        try:
            relay.say(f"parallax: {message}")
        except BrokenPipeError:
            relay.drop_unread()
    return ending.status
