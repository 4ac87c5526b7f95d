"""Runs a job and starts it again when it fails; restart.py decides. Each job is launched by a thread of its own.

The main thread waits, for signals come to it alone, and hands them to the job that runs.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from parallax.errors import ParallaxError
from parallax.runtime.launcher.cause import STOPPED, WELL, EndCause
from parallax.runtime.launcher.job import Job
from parallax.runtime.launcher.launch import Contact, JobEnd, caught_signals
from parallax.runtime.launcher.outcome import signal_name
from parallax.runtime.launcher.reach import answering_hosts
from parallax.runtime.launcher.restart import (
    FailedJob,
    GiveUp,
    RestartState,
    after_failure,
    choose_hosts,
    tell_of_hosts,
)

_POLL_S = 0.05

JobOn = Callable[[tuple[str, ...]], Job]
Launch = Callable[..., JobEnd]


@dataclass(frozen=True, slots=True)
class RestartOptions:
    """What is wanted of restarts.

    Attributes:
        most: how often a job may be started again.
        min_hosts: with so many hosts it goes on; None: with all alone.
        has_checkpoints: the workers write checkpoints, not the script itself.
    """

    most: int
    min_hosts: int | None = None
    has_checkpoints: bool = True


def launch_restarting(options: RestartOptions, hosts: tuple[str, ...], job_on: JobOn, launch: Launch) -> JobEnd:
    """Runs a job on all hosts until it ends well or is not worth another start; gives the end of the last one.

    Args:
        options: what is wanted.
        hosts: addresses of all hosts.
        job_on: plans and gives the job on some of them; for all it has planned already.
        launch: as `launch.launch`.

    Raises:
        LaunchError: as `launch`, of the first job.
    """
    with caught_signals() as caught:
        return _Restarting(options, hosts, job_on, launch, caught).run()


class _RunningJob:
    """A job in a thread of its own."""

    def __init__(self, launch: Launch, job: Job, contact: Contact) -> None:
        self.job = job
        self.contact = contact
        self._launch = launch
        self._end: JobEnd | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="parallax-job", daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Waits for its end, and says whether it has come."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def end(self) -> JobEnd:
        """How it ended; raises what its launch has raised."""
        if self._end is None:
            raise self._error or RuntimeError("The thread of a job has ended without a word.")
        return self._end

    def _run(self) -> None:
        try:
            self._end = self._launch(self.job, contact=self.contact)
        except BaseException as error:  # raised again by `end`, in the thread that waits
            self._error = error


class _Restarting:
    """The loop: runs a job, asks what is to be done, and does it."""

    def __init__(
        self, options: RestartOptions, hosts: tuple[str, ...], job_on: JobOn, launch: Launch, caught: list[int]
    ) -> None:
        self._state = RestartState(options.most, hosts, options.min_hosts, options.has_checkpoints)
        self._hosts = hosts
        self._job_on = job_on
        self._launch = launch
        self._caught = caught

    def run(self) -> JobEnd:
        """Runs jobs until one is the last."""
        job = self._job_on(self._hosts)
        while True:
            end = self._run(job)
            if end.cause.kind in (WELL, STOPPED):
                return end
            self._state, decision = after_failure(self._state, _failed(job, end))
            if isinstance(decision, GiveUp):
                return end if _say(decision.text) else replace(end, cause=EndCause(STOPPED))
            if not _say(decision.text) or not self._wait(decision.wait_s):
                return self._stopped(end)
            following = self._next_job()
            if following is None:
                return end
            job = following

    def _run(self, job: Job) -> JobEnd:
        running = _RunningJob(self._launch, job, Contact(self._caught))
        while not running.wait(_POLL_S):
            pass
        return running.end()

    def _next_job(self) -> Job | None:
        """The job to be started; None when there can be none, and the user has been told."""
        answering = self._state.hosts
        if self._state.min_hosts is not None:
            answering = answering_hosts(self._job_on(self._state.hosts).cluster)
        chosen, why_not = choose_hosts(self._state, answering)
        if why_not:
            _say(f"The job is not started again: {why_not}")
            return None
        if text := tell_of_hosts(self._state, self._hosts, chosen):
            _say(text)
        self._hosts = chosen
        try:
            return _numbered(self._job_on(chosen), self._state.restarts)
        except ParallaxError as error:
            _say(f"The job is not started again: on the hosts that are left it cannot be planned. {error}")
            return None

    def _wait(self, seconds: float) -> bool:
        """Waits until a time; False when a signal has come."""
        until_s = time.monotonic() + seconds
        while not self._caught and time.monotonic() < until_s:
            time.sleep(_POLL_S)
        return not self._caught

    def _stopped(self, end: JobEnd) -> JobEnd:
        """The end of a job that is not started again because of a signal, or because nobody reads."""
        if not self._caught:
            return end
        _say(f"the launcher got {signal_name(self._caught[0])}. The job is not started again.")
        return replace(end, status=128 + self._caught[0], cause=EndCause(STOPPED))


def _failed(job: Job, end: JobEnd) -> FailedJob:
    hosts = {job.host_of(rank) for rank in end.cause.ranks}
    return FailedJob(end.cause, end.reason, end.progress, end.cause.host or (hosts.pop() if len(hosts) == 1 else ""))


def _numbered(job: Job, number: int) -> Job:
    """A job whose files of output are beside those of the jobs before it."""
    folder = job.output_folder
    return job if folder is None else replace(job, output_folder=Path(folder) / f"restart-{number}")


def _say(text: str) -> bool:
    """Tells the user; False when nobody reads any more."""
    if text:
        try:
            sys.stderr.write(f"parallax: {text}\n")
            sys.stderr.flush()
        except BrokenPipeError:
            return False
    return True
