"""Runs a job and restarts it when it fails; restart_policy.py decides. Each job is launched by its own thread.

The main thread waits, because it alone receives signals, and forwards them to the running job. Once that job has made a
run, a spare job is started alongside it (spare.py). The spare becomes the next job if that runs on the same hosts; a
spare that was ready and has failed is replaced. While a job runs on fewer hosts than it may, the others are probed now
and then; if they respond, the job saves, ends and continues there.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from parallax.base.errors import LaunchError, ParallaxError
from parallax.cluster.machines import Cluster
from parallax.report.text import bytes_text
from parallax.runtime.launcher.failures.cause import BROKEN, HOST_LOST, STOPPED, WELL, YIELDED, EndCause
from parallax.runtime.launcher.failures.ending_signals import caught_signals
from parallax.runtime.launcher.failures.first_failure import EXIT_UNKNOWN, signal_name
from parallax.runtime.launcher.job import Job
from parallax.runtime.launcher.launch import JobEnd
from parallax.runtime.launcher.mpirun import passes_preemption_on
from parallax.runtime.launcher.output.relay import bytes_of
from parallax.runtime.launcher.reach import HostsNotReady
from parallax.runtime.launcher.restarts.host_probe import probe_hosts
from parallax.runtime.launcher.restarts.restart_policy import (
    FailedJob,
    GiveUp,
    RestartState,
    after_failure,
    after_yield,
    choose_hosts,
    describe_hosts,
    list_hosts_to_probe,
)
from parallax.runtime.launcher.restarts.spare import Launch, RunningJob, SpareJob

FIRST_ASK_S, LONGEST_ASK_S = 10.0, 1280.0
FIRST_REPLACED_S = 1.0
_POLL_S = 0.05

JobOn = Callable[[tuple[str, ...]], Job]


@dataclass(frozen=True, slots=True)
class RestartOptions:
    """Options of restarts.

    Attributes:
        most: how often a job may be restarted.
        min_hosts: the minimum of hosts to continue with; None: all of them.
        has_checkpoints: the workers write checkpoints, not the script itself.
        is_behind: as in `RestartState`.
        standby: the variable, with its value, that makes processes of a spare job wait; None for no spare jobs.
        is_driven: as in `RestartState`.
        may_restart: whether a job that has failed now may be restarted at all.
    """

    most: int
    min_hosts: int | None = None
    has_checkpoints: bool = True
    is_behind: bool = False
    standby: tuple[str, str] | None = None
    is_driven: bool = False
    may_restart: Callable[[], bool] = lambda: True


def launch_restarting(
    options: RestartOptions, hosts: tuple[str, ...], job_on: JobOn, launch: Launch, caught: list[int] | None = None
) -> JobEnd:
    """Runs a job on all hosts until it succeeds or is not worth a restart; returns the end of the last one.

    Args:
        options: the options of restarts.
        hosts: addresses of all hosts.
        job_on: plans and returns the job on some of them; for all hosts it has been planned already.
        launch: as `launch.launch`.
        caught: signals that end the job, which another thread adds; None for those that this process receives.

    Raises:
        LaunchError: as `launch`, of the first job.
    """
    with nullcontext(caught) if caught is not None else caught_signals() as caught:
        restarting = _Restarting(options, hosts, job_on, launch, caught)
        try:
            return restarting.run()
        finally:
            restarting.close()


class _Restarting:
    """The loop: runs a job, queries the restart policy, and executes its decision."""

    def __init__(
        self, options: RestartOptions, hosts: tuple[str, ...], job_on: JobOn, launch: Launch, caught: list[int]
    ) -> None:
        self._state = RestartState(
            options.most,
            hosts,
            options.min_hosts,
            options.has_checkpoints,
            is_behind=options.is_behind,
            is_driven=options.is_driven,
        )
        self._standby, self._may_restart = options.standby, options.may_restart
        self._hosts = hosts
        self._job_on = job_on
        self._launch = launch
        self._caught = caught
        self._spare: SpareJob | None = None
        self._ended_spares: list[SpareJob] = []
        self._has_logged = False  # the memory of the spare
        self._next_spare_s = math.inf  # when the next one may be started
        self._replaced_s = FIRST_REPLACED_S  # the time between the end of this one and the start of the next
        self._starts = 0  # of jobs, excluding the first
        self._host_probe = _HostProbe()

    def run(self) -> JobEnd:
        """Runs jobs until one of them is the last."""
        running = RunningJob(self._launch, self._job_on(self._hosts))
        while True:
            end = self._run(running)
            if end.cause.kind in (WELL, STOPPED) or self._caught:  # any end after a signal
                return end
            if not self._may_restart():
                return end
            if end.cause.kind == YIELDED:
                self._state = after_yield(self._state, end.progress)
                following = self._next_job()
                if following is None:
                    return end
                running = following
                continue
            self._state, decision = after_failure(self._state, _describe_failure(running.job, end))
            if isinstance(decision, GiveUp):
                _say(decision.text)
                return end
            if not _say(decision.text) or not self._wait(decision.wait_s):
                return self._stop(end)
            following = self._next_job()
            if following is None:
                return end
            running = following

    def close(self) -> None:
        """Ends the spare job, and waits for its end."""
        self._drop_spare()
        for spare in self._ended_spares:
            spare.wait()

    def _run(self, running: RunningJob) -> JobEnd:
        """Waits for a job's end; starts the spare when the job trains, and ends it when the training loop has ended."""
        may_start = self._standby is not None and self._state.restarts < self._state.most
        self._next_spare_s, self._replaced_s = 0.0 if may_start else math.inf, FIRST_REPLACED_S
        while not running.wait(_POLL_S):
            running.contact.signals += self._caught[len(running.contact.signals) :]
            progress = running.contact.progress
            if progress.has_finished or self._caught:
                self._drop_spare()
            elif progress.has_run and time.monotonic() >= self._next_spare_s:
                self._start_spare()
            if not (progress.has_finished or self._caught or running.contact.shall_yield):
                running.contact.shall_yield = self._has_more_hosts(running)
            self._look_at_spare()
        try:
            return running.end()
        except LaunchError as error:
            if not self._state.restarts:
                raise
            _say(str(error))  # the missing thing may be present at the next start
            cause = EndCause(BROKEN)
            if isinstance(error, HostsNotReady):
                cause = EndCause(HOST_LOST, host=error.hosts[0])
            return JobEnd(EXIT_UNKNOWN, cause, str(error).partition("\n")[0].rstrip("."))

    def _has_more_hosts(self, running: RunningJob) -> bool:
        """Whether hosts outside the job respond, and the job has progressed far enough to be ended for them."""
        hosts = list_hosts_to_probe(self._state, self._hosts)
        progress = running.contact.progress
        if not hosts or not progress.has_run or progress.step is None or not passes_preemption_on(running.job.cluster):
            return False
        cluster = self._job_on(self._state.hosts).cluster
        answering = self._host_probe.poll(replace(cluster, hosts=tuple(h for h in cluster.hosts if h.address in hosts)))
        if answering:
            _say(f"{' and '.join(answering)} can be used again: the job saves and continues there too.")
        return bool(answering)

    def _next_job(self) -> RunningJob | None:
        """Returns the restarted job; None when it cannot be restarted, and the reason has been printed."""
        self._starts += 1
        self._host_probe.begin()
        answering = self._state.hosts
        if self._state.min_hosts is not None:
            answering = probe_hosts(self._job_on(self._state.hosts).cluster)
        chosen, why_not = choose_hosts(self._state, answering)
        if why_not:
            _say(f"The job is not started again: {why_not}")
            return None
        if text := describe_hosts(self._state, self._hosts, chosen):
            _say(text)
        self._hosts, spare = chosen, self._spare
        if spare is not None and spare.hosts == chosen and spare.is_alive:
            self._spare = None
            return spare.go()
        self._drop_spare()
        try:
            return RunningJob(self._launch, _number_files(self._job_on(chosen), self._starts))
        except ParallaxError as error:
            _say(f"The job is not started again: it cannot be planned for the remaining hosts. {error}")
            return None

    def _start_spare(self) -> None:
        """Starts the job that comes next, if this one fails, on the hosts of this one."""
        if self._standby is not None:
            self._next_spare_s = math.inf
            job = _number_files(self._job_on(self._hosts), self._starts + 1)
            streams = bytes_of(sys.stdout), bytes_of(sys.stderr)
            self._spare, self._has_logged = SpareJob(self._launch, job, self._standby, streams), False

    def _look_at_spare(self) -> None:
        """Reports the memory of the spare when it is ready, and drops one that has failed.

        One that was never ready may have run out of memory, which the job needs more than another attempt.
        """
        spare = self._spare
        if spare is None:
            return
        if not spare.is_alive:
            text = "The spare job has failed; a restart will import TensorFlow again"
            if self._has_logged:
                self._next_spare_s = time.monotonic() + self._replaced_s
                self._replaced_s = min(2 * self._replaced_s, LONGEST_ASK_S)
                text += " until another one is ready"
            _say(f"{text}.")
            self._drop_spare()
        elif not self._has_logged and (used_bytes := spare.ready_bytes) is not None:
            self._has_logged = True
            _say(f"A spare job is ready for a restart; its processes take {bytes_text(used_bytes)} (--no-spare: none).")

    def _drop_spare(self) -> None:
        if self._spare is not None:
            self._spare.stop()
            self._ended_spares.append(self._spare)
            self._spare = None

    def _wait(self, seconds: float) -> bool:
        """Waits until a time; False when a signal has arrived."""
        until_s = time.monotonic() + seconds
        while not self._caught and time.monotonic() < until_s:
            time.sleep(_POLL_S)
        return not self._caught

    def _stop(self, end: JobEnd) -> JobEnd:
        """The end of a job that is not restarted because of a signal, or because its output has no reader."""
        if not self._caught:
            return end
        _say(f"the launcher got {signal_name(self._caught[0])}. The job is not started again.")
        return replace(end, status=128 + self._caught[0], cause=EndCause(STOPPED))


class _HostProbe:
    """Probes hosts in a thread at an interval that doubles whenever they responded."""

    def __init__(self) -> None:
        self._wait_s = FIRST_ASK_S
        self._next_s = 0.0
        self._thread: threading.Thread | None = None
        self._responding: tuple[str, ...] = ()

    def begin(self) -> None:
        """Starts a pause in which no host is probed."""
        self._next_s = time.monotonic() + self._wait_s

    def poll(self, cluster: Cluster) -> tuple[str, ...]:
        """Returns the hosts of a cluster that have responded, once; empty while none has."""
        if self._thread is not None and not self._thread.is_alive():
            self._thread = None
            self.begin()
            if self._responding:
                self._wait_s = min(2 * self._wait_s, LONGEST_ASK_S)
                return self._responding
        if self._thread is None and time.monotonic() >= self._next_s:
            self._thread = threading.Thread(target=self._probe, args=(cluster,), name="parallax-asking", daemon=True)
            self._thread.start()
        return ()

    def _probe(self, cluster: Cluster) -> None:
        self._responding = ()  # for a thread that fails
        self._responding = probe_hosts(cluster)


def _describe_failure(job: Job, end: JobEnd) -> FailedJob:
    hosts = {job.host_of(rank) for rank in end.cause.ranks}
    return FailedJob(end.cause, end.reason, end.progress, end.cause.host or (hosts.pop() if len(hosts) == 1 else ""))


def _number_files(job: Job, number: int) -> Job:
    """Returns a job whose output files are next to those of the earlier jobs."""
    folder = job.output_folder
    return job if folder is None else replace(job, output_folder=Path(folder) / f"restart-{number}")


def _say(text: str) -> bool:
    """Prints a message to the user; False when the output has no reader any more."""
    if text:
        try:
            sys.stderr.write(f"parallax: {text}\n")
            sys.stderr.flush()
        except BrokenPipeError:
            return False
    return True
