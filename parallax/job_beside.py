"""A job that runs alongside the script: its workers wait for the plans that this process sends them."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple, NoReturn, cast

from parallax.analysis.graph_decisions import GraphDecisions
from parallax.api import JobEnded
from parallax.cluster.machines import Cluster
from parallax.errors import LaunchError
from parallax.planned_call import check_outputs, checked_call, checked_cluster, plan_call, show_plan
from parallax.runtime.launcher.ending_signals import add_sigterm_to
from parallax.runtime.launcher.job import Job
from parallax.runtime.launcher.launch import Contact, JobEnd, launch
from parallax.runtime.launcher.relay import bytes_of
from parallax.runtime.launcher.restarting import RestartOptions, launch_restarting
from parallax.runtime.launcher.spare import HeldStream, RunningJob
from parallax.runtime.launching import check_launching
from parallax.runtime.make_job import job_with, message_of, message_without_plan, of_workers
from parallax.runtime.restarts import check_restarts, standing_by
from parallax.runtime.worker.job_message import JobMessage
from parallax.settings.config import Config
from parallax.settings.environment import Settings
from parallax.settings.parts import RestartConfig
from parallax.types import Graph

_ENDED_EARLY = "Workers serve the process that launched them until it is done, and these ended before."
_PATIENCE_S = 5.0
"""How long workers may take to end when the driver has failed."""


class JobFailed(JobEnded, Exception):
    """The job of a call has failed, and has said why; uncaught, it ends the script with the job's exit status."""

    def __init__(self, status: int) -> None:
        super().__init__(status)

    def __str__(self) -> str:
        return f"The job ended with exit status {self.status}. What failed is printed above."


@dataclass(frozen=True, slots=True)
class JobNeeds:
    """What a call needs of a job; equal needs are met by one job.

    Attributes:
        cluster: the machines.
        config: the settings, with those of the command line.
        wanted: what the command line asks.
        config_text: the settings as text, by which they are compared.
    """

    cluster: Cluster
    config: Config = field(compare=False)
    wanted: Settings
    config_text: str

    @staticmethod
    def of(config: Config | None, resource_info: str | Path | None) -> JobNeeds:
        """The needs of a call with these arguments of `parallel_run`.

        Raises:
            ConfigError: configuration or resource file break a rule.
        """
        call = checked_call(None, resource_info, True, config)
        cluster = checked_cluster(call)
        check_restarts(call.config, cluster, is_call=True, resumes=True)
        return JobNeeds(cluster, call.config, call.wanted, repr(call.config))


class JobBeside:
    """A job whose workers call a function while this process goes on; their output is shown from `show` on.

    The function has its graphs from this process, and finds TensorFlow imported without Keras.

    Args:
        needs: the machines and settings.
        number: of the call that it is started for (`call.next_call`).
        function: of `packed_function`; it must end by itself when this process is done with it.
        attachment: what the function is given.
        is_restart_wanted: whether it shall be started again, where it has failed now and its settings allow that.
        servers: the number of the host that each server is on.

    Raises:
        LaunchError: before anything is started, when this machine or process cannot start a job.
    """

    def __init__(
        self,
        needs: JobNeeds,
        number: int,
        function: bytes,
        attachment: bytes,
        is_restart_wanted: Callable[[], bool],
        servers: tuple[int, ...] = (),
    ) -> None:
        check_launching(function, needs.cluster, starts=True)
        mine = of_workers(replace(needs.wanted, call=number, without_keras=True), needs.config)
        message = replace(message_without_plan(needs.cluster, servers), function=function, attachment=attachment)
        self._held = [HeldStream(bytes_of(stream)) for stream in (sys.stdout, sys.stderr)]
        streams = [cast(BinaryIO, stream) for stream in self._held]
        self._is_restart_wanted = is_restart_wanted
        job = job_with(message, needs.cluster, needs.config, mine)
        self._running = RunningJob(partial(self._launch, needs.config.restart), job, streams=streams)

    @property
    def is_alive(self) -> bool:
        """Whether the job still runs."""
        return not self._running.wait(0)

    def preempt_on_sigterm(self) -> AbstractContextManager[None]:
        """Within it, at SIGTERM of this process, its workers save and end."""
        return add_sigterm_to(self._running.contact.signals)

    def show(self) -> None:
        """Shows what its processes write, and have written; a second call changes nothing."""
        for stream in self._held:
            stream.release()

    def _launch(self, asked: RestartConfig, job: Job, out: BinaryIO, errors: BinaryIO, contact: Contact) -> JobEnd:
        """Launches it, and again where it fails and that is wanted."""
        if not asked.max_restarts:
            return launch(job, out, errors, contact)

        def launch_one(job: Job, own_out: BinaryIO | None, own_errors: BinaryIO | None, contact: Contact) -> JobEnd:
            return launch(job, own_out or out, own_errors or errors, contact)

        hosts = tuple(host.address for host in job.cluster.hosts)
        spare = None if asked.no_spare else standing_by(runs_script=False)
        wanted = self._is_restart_wanted
        options = RestartOptions(asked.max_restarts, standing_by=spare, is_driven=True, is_wanted=wanted)
        return launch_restarting(options, hosts, lambda _: job, launch_one, contact.signals)

    def cancel(self) -> None:
        """Ends it at once."""
        self._running.contact.signals.append(signal.SIGTERM)
        self._running.wait()

    def fail(self) -> NoReturn:
        """Waits for its end, and raises its failure in the script.

        Raises:
            JobFailed: with its exit status.
            LaunchError: it could not be started, or has ended well, which it must not.
        """
        self._running.wait()
        end = self._running.end()
        raise JobFailed(end.status) if end.status else LaunchError(_ENDED_EARLY)

    def stop(self) -> None:
        """Waits for its end, which a signal brings about if it takes long."""
        if not self._running.wait(_PATIENCE_S):
            self.cancel()


class PlannedMessage(NamedTuple):
    """What workers of a job beside this process are sent of a plan.

    Attributes:
        message: as workers of any job.
        decisions: what follows for the graph, which they need not read themselves.
    """

    message: JobMessage
    decisions: GraphDecisions


def plan_message(
    number: int, graph: Graph, config: Config | None = None, resource_info: str | Path | None = None
) -> PlannedMessage:
    """Plans a graph, prints the plan, and gives the message by which workers of a job beside this process follow it.

    Args:
        number: of the call (`call.next_call`).
        graph: a tf.Graph that trains on one device, with its update ops.
        config: settings.
        resource_info: a resource file; None for workers on this machine.

    Raises:
        ParallaxError: graph, plan, configuration or resource file break a rule.
    """
    call = checked_call(graph, resource_info, True, config)
    call = replace(call, wanted=replace(call.wanted, call=number))
    analysed, cluster, plan = plan_call(call)
    check_outputs(call, cluster)
    seed = show_plan(plan, call.config)
    mine = of_workers(call.wanted, call.config)
    message = message_of(plan, cluster, call.config, mine, seed)
    return PlannedMessage(message, GraphDecisions.of(analysed, plan))
