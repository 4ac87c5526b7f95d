"""A job that runs alongside the script: its workers wait for the plans that this process sends them."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO, NamedTuple, NoReturn, cast

from parallax.analysis.graph_decisions import GraphDecisions
from parallax.base.errors import LaunchError
from parallax.base.types import Graph
from parallax.cluster.machines import Cluster
from parallax.entry.api import JobEnded
from parallax.entry.planned_call import check_outputs, checked_call, checked_cluster, plan_call, plan_on, show_plan
from parallax.plans.plan import Plan
from parallax.report.plan_table import plan_table
from parallax.runtime.before_launch import check_launching
from parallax.runtime.launcher.failures.ending_signals import add_sigterm_to
from parallax.runtime.launcher.job import Job
from parallax.runtime.launcher.launch import Contact, JobEnd, launch
from parallax.runtime.launcher.output.relay import bytes_of
from parallax.runtime.launcher.restarts.restart_loop import RestartOptions, launch_restarting
from parallax.runtime.launcher.restarts.spare import BufferedStream, RunningJob
from parallax.runtime.make_job import job_with, message_of, message_without_plan, of_workers
from parallax.runtime.planned_job import check_restarts, standby
from parallax.runtime.verify.verified_steps import check_comparable
from parallax.runtime.worker.job_message import JobMessage
from parallax.settings.config import Config
from parallax.settings.environment import Settings

_ENDED_EARLY = "The workers ended before the process that launched them had finished. Run the script again."
_PATIENCE_S = 5.0
"""Seconds that workers may take to end when the driver has failed."""


class JobFailed(JobEnded, Exception):
    """The job of a call has failed, and has reported why; uncaught, it ends the script with the job's exit status."""

    def __init__(self, status: int) -> None:
        super().__init__(status)

    def __str__(self) -> str:
        return f"The job ended with exit status {self.status}. The cause is printed above."


@dataclass(frozen=True, slots=True)
class JobRequirements:
    """A call's requirements of a job; calls with equal requirements share one job.

    Attributes:
        cluster: the machines.
        config: the settings, merged with those of the command line.
        requested: the command line's settings.
        config_text: the settings as text, by which they are compared.
    """

    cluster: Cluster
    config: Config = field(compare=False)
    requested: Settings
    config_text: str

    @staticmethod
    def of(config: Config | None, resource_info: str | Path | None) -> JobRequirements:
        """The requirements of a call with these arguments of `parallel_run`.

        Raises:
            ConfigError: configuration or resource file are invalid.
        """
        call = checked_call(None, resource_info, True, config)
        cluster = checked_cluster(call)
        check_restarts(call.config, cluster, is_call=True)
        return JobRequirements(cluster, call.config, call.requested, repr(call.config))


class BackgroundJob:
    """A job whose workers call a function while this process continues; their output is shown from `show` on.

    The function receives its graphs from this process, and finds TensorFlow imported without Keras.

    Args:
        requirements: the machines and settings.
        number: of the call that it is started for (`call.next_call`).
        function: of `pack_function`; it must end by itself when this process no longer needs it.
        attachment: data for the function.
        may_restart: whether it may be restarted after a failure now, if its settings permit that.
        servers_on: by the addresses of its hosts, the host number of each server.

    Raises:
        LaunchError: before anything is started, when this machine or process cannot start a job.
    """

    def __init__(
        self,
        requirements: JobRequirements,
        number: int,
        function: bytes,
        attachment: bytes,
        may_restart: Callable[[], bool],
        servers_on: Callable[[tuple[str, ...]], tuple[int, ...]] = lambda _: (),
    ) -> None:
        check_launching(False, requirements.cluster, starts=True)
        self._mine = of_workers(replace(requirements.requested, call=number, without_keras=True), requirements.config)
        self._requirements, self._sent, self._servers_on = requirements, (function, attachment), servers_on
        self._held = [BufferedStream(bytes_of(stream)) for stream in (sys.stdout, sys.stderr)]
        streams = [cast(BinaryIO, stream) for stream in self._held]
        self._may_restart = may_restart
        self._running = RunningJob(self._launch, self._job_on(_addresses_of(requirements.cluster)), streams=streams)

    @property
    def is_alive(self) -> bool:
        """Whether the job still runs."""
        return not self._running.wait(0)

    def preempt_on_sigterm(self) -> AbstractContextManager[None]:
        """Context in which SIGTERM of this process makes its workers save and end."""
        return add_sigterm_to(self._running.contact.signals)

    def show(self) -> None:
        """Shows the past and future output of its processes; a second call has no effect."""
        for stream in self._held:
            stream.release()

    def _job_on(self, addresses: tuple[str, ...]) -> Job:
        """The job on some of the hosts."""
        cluster, (function, attachment) = self._requirements.cluster.restrict_to(addresses), self._sent
        message = message_without_plan(cluster, self._servers_on(addresses))
        message = replace(message, function=function, attachment=attachment)
        return job_with(message, cluster, self._requirements.config, self._mine)

    def _launch(self, job: Job, out: BinaryIO, errors: BinaryIO, contact: Contact) -> JobEnd:
        """Launches it, and restarts it after failures if configured."""
        config = self._requirements.config
        restart = config.restart
        if not restart.max_restarts:
            return launch(job, out, errors, contact)

        def launch_one(job: Job, own_out: BinaryIO | None, own_errors: BinaryIO | None, contact: Contact) -> JobEnd:
            return launch(job, own_out or out, own_errors or errors, contact)

        hosts = _addresses_of(job.cluster)
        spare = None if restart.no_spare else standby(runs_script=False)
        may_restart = self._may_restart
        options = RestartOptions(
            restart.max_restarts,
            restart.min_hosts,
            has_checkpoints=config.ckpt_config.keeps_state,
            standby=spare,
            is_driven=True,
            may_restart=may_restart,
        )
        return launch_restarting(options, hosts, self._job_on, launch_one, contact.signals)

    def cancel(self) -> None:
        """Ends it at once."""
        self._running.contact.signals.append(signal.SIGTERM)
        self._running.wait()

    def fail(self) -> NoReturn:
        """Waits for its end, and raises its failure in the script.

        Raises:
            JobFailed: with its exit status.
            LaunchError: it could not be started, or has succeeded, which it must not.
        """
        self._running.wait()
        end = self._running.end()
        raise JobFailed(end.status) if end.status else LaunchError(_ENDED_EARLY)

    def stop(self) -> None:
        """Waits for its end; ends it by a signal if that takes long."""
        if not self._running.wait(_PATIENCE_S):
            self.cancel()


class PlannedMessage(NamedTuple):
    """The message about a plan to workers of a job alongside this process.

    Attributes:
        message: as for workers of any job.
        decisions: the rewrites of the graph, which they need not derive themselves.
    """

    message: JobMessage
    decisions: GraphDecisions


class CallPlans:
    """The plans of one call, by the hosts of its job; each is made and printed once.

    Args:
        number: of the call (`call.next_call`).
        graph: a tf.Graph that trains on one device, with its update ops.
        config: settings.
        resource_info: a resource file; None for workers on this machine.

    Raises:
        ParallaxError: graph, plan, configuration or resource file are invalid.
    """

    def __init__(
        self, number: int, graph: Graph, config: Config | None = None, resource_info: str | Path | None = None
    ) -> None:
        call = checked_call(graph, resource_info, True, config)
        self._call = replace(call, requested=replace(call.requested, call=number))
        self._analysed, self._cluster, plan = plan_call(self._call)
        check_outputs(self._call, self._cluster)
        if self._call.requested.verify_first is not None:
            check_comparable(self._analysed, plan)
        self._seed = show_plan(plan, self._call.config)
        self._found = {_addresses_of(self._cluster): self._message(plan, self._cluster)}

    def plan_on_all(self) -> PlannedMessage:
        """The plan for all hosts."""
        return self.plan_on(_addresses_of(self._cluster))

    def plan_on(self, addresses: tuple[str, ...]) -> PlannedMessage:
        """The plan for some of the hosts.

        Raises:
            ParallaxError: there is none.
        """
        if addresses not in self._found:
            cluster = self._cluster.restrict_to(addresses)
            plan = plan_on(cluster, self._analysed, self._call)
            sys.stdout.write(plan_table(plan))
            sys.stdout.flush()
            self._found[addresses] = self._message(plan, cluster)
        return self._found[addresses]

    def _message(self, plan: Plan, cluster: Cluster) -> PlannedMessage:
        mine = of_workers(self._call.requested, self._call.config)
        message = message_of(plan, cluster, self._call.config, mine, self._seed)
        return PlannedMessage(message, GraphDecisions.of(self._analysed, plan))


def _addresses_of(cluster: Cluster) -> tuple[str, ...]:
    return tuple(host.address for host in cluster.hosts)
