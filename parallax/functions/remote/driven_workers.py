"""The workers that this process drives: it starts them before their plan is known, and reuses them between calls."""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import NamedTuple

from parallax.base.errors import ParallaxError
from parallax.base.status_line import clear_status, show_status
from parallax.entry import call as calls
from parallax.entry.background_job import BackgroundJob, CallPlans, JobRequirements, PlannedMessage
from parallax.functions.remote.remote_steps import RemoteSteps
from parallax.functions.remote.request_queue import RequestQueue
from parallax.functions.remote.request_receiver import END
from parallax.functions.remote.serve_driver import ReadyWorkers, ServedDriver, serve
from parallax.functions.remote.step_runner import INITIAL, place_of_value
from parallax.functions.tracing.served_graph import ServedGraph
from parallax.functions.tracing.step_graph import GraphStep, StepGraph
from parallax.report.logger import log
from parallax.report.text import pluralize
from parallax.runtime.before_launch import leave_gpus
from parallax.runtime.driver_channel import ChannelClosed, DriverConnection, DriverSocket, deferred_interrupts
from parallax.runtime.launcher.restarts.host_probe import driver_address
from parallax.runtime.launcher.restarts.waiting_job import park_job, take_waiting
from parallax.runtime.worker.function_package import pack_function, pickle_for_workers
from parallax.settings.config import Config

IDLE_S = 600.0
"""Seconds after which idle workers are ended."""
_PATIENCE_S = 5.0
"""Seconds that workers may take to finish a call after an error in this process."""


class DrivenWorkers:
    """The workers of one job, which open a session for each graph.

    Args:
        requirements: the resource file and settings.
        number: the number of the call that they are started for (`call.next_call`).
        plans: the plans of a call with servers, which its job starts; None for one without.

    Raises:
        LaunchError: before anything is started, when this host or process cannot start a job.
    """

    def __init__(self, requirements: JobRequirements, number: int, plans: CallPlans | None = None) -> None:
        self.requirements = requirements
        self.servers = () if plans is None else plans.plan_on_all().message.servers
        self._hosts: tuple[str, ...] = ()  # of the job behind the channel
        self._is_sound = True
        self._open: _OpenGraph | None = None
        self._requests: RequestQueue | None = None  # of the last call
        self._channel: DriverConnection | None = None
        self._listening = DriverSocket(_address_for(requirements), requirements.cluster.ports)
        has_teams = requirements.config.stages is not None or requirements.config.islands is not None
        address = pickle.dumps(ServedDriver(self._listening.address, has_teams))
        try:
            servers_on = (lambda _: ()) if plans is None else (lambda hosts: plans.plan_on(hosts).message.servers)
            self._job = BackgroundJob(
                requirements, number, pack_function(serve), address, self._may_restart, servers_on
            )
        except BaseException:
            self._listening.close()
            raise

    @property
    def _is_spread(self) -> bool:
        """Whether workers make rows of elements: all stages of a replica would have to draw the same numbers."""
        return self.requirements.config.stages is None and not all(
            host.is_this_machine for host in self.requirements.cluster.hosts
        )

    @property
    def is_sound(self) -> bool:
        """Whether no failure is known."""
        return self._is_sound and self._job.is_alive

    def are_responding(self) -> bool:
        """Whether all workers still answer; workers that have never opened a session are not queried."""
        if self._channel is not None and self.is_sound:
            self._is_sound = False
            with suppress(ChannelClosed):
                RequestQueue(self._channel).call("barrier")()
                self._is_sound = True
        return self.is_sound

    def has_graph_open(self, served: ServedGraph) -> bool:
        """Whether their session has this graph."""
        return self._open is not None and self._open.served.is_like(served)

    def close_session(self) -> None:
        """Makes workers close their open session, if any, asynchronously."""
        with suppress(ChannelClosed), deferred_interrupts():  # the next caller that needs them detects the failure
            if self._channel is not None and self._open is not None:
                self._open = None
                RequestQueue(self._channel).notify("close")

    @contextmanager
    def session(
        self, plans: CallPlans | None, graph: StepGraph, served: ServedGraph, config: Config
    ) -> Iterator[RemoteSteps]:
        """The workers' session for one call.

        Args:
            plans: plans for the call, where no session is open; None to use the open session.
            graph: of the steps.
            served: the same graph in the form that is sent to workers.
            config: settings.

        Raises:
            JobFailed: the job has failed, and has reported why.
        """
        self._is_sound = False  # until they have settled
        try:
            restarts = self.requirements.config.restart.max_restarts
            requests = RequestQueue(self._connect(), self._restore if restarts else None)
            self._requests = requests
            if plans is not None:
                opened = _OpenGraph(plans, served, pickle_for_workers(config, "hooks"))
                request = opened.request(self._hosts)
            with deferred_interrupts():
                if plans is not None:
                    self._open = opened
                ready = requests.open("resume") if plans is None else requests.open("open", *request)
            saves = config.ckpt_config.ckpt_dir is not None
            show_status(f"{pluralize(self.requirements.cluster.num_workers, 'worker')} open the session")
            try:
                with self._job.preempt_on_sigterm() if saves else nullcontext():
                    running = RemoteSteps(graph, requests, ready(), self._whole_results(), self._is_spread)
                    clear_status()
                    yield running
            except BaseException:
                requests.give_up()
                with suppress(ChannelClosed):  # the exception goes before it, and may have come while others started
                    self._is_sound = self._try_settle(requests, _PATIENCE_S)
                raise
            self._is_sound = self._try_settle(requests) and not requests.has_recovered  # each call may restart so often
            requests.give_up()
        except ChannelClosed:
            self._job.fail()

    def _whole_results(self) -> frozenset[str] | None:
        """The results that layouts replicate, for `RemoteSteps`, by the plan of the open session."""
        if self.requirements.cluster.num_workers == 1 or self._open is None:
            return None
        layouts = self._open.plans.plan_on_all().decisions.rewrites.layouts
        return frozenset(name for one in layouts for name in one.global_results)

    def _may_restart(self) -> bool:
        """Whether workers that fail now are to be replaced: those of a call in progress and of the first call."""
        return self._requests is None or not self._requests.has_failed

    def _restore(self) -> tuple[DriverConnection, ReadyWorkers]:
        """Waits for the workers of a restarted job, which open the session.

        Raises:
            ChannelClosed: it is not restarted.
        """
        assert self._open is not None, "a session was opened"
        while True:
            if self._channel is not None:
                self._channel.close()
            self._channel = None
            channel = self._connect()
            with suppress(ChannelClosed):
                return channel, RequestQueue(channel).open("open", *self._open.request(self._hosts))()

    def _try_settle(self, requests: RequestQueue, seconds: float = math.inf) -> bool:
        """Makes workers finish a call; returns False where they take longer than `seconds`."""
        try:
            if not requests.call("settle")(seconds):
                self._open = None
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        """Ends the workers and waits for their end; a second call has no effect."""
        self._listening.close()
        if self._channel is None:
            self._job.cancel()
            return
        with suppress(ChannelClosed):
            RequestQueue(self._channel).notify(END.kind)
        self._job.stop()
        self._channel.close()

    def _connect(self) -> DriverConnection:
        """The channel to worker 0, for which the first session waits."""
        self._job.show()
        if self._channel is None:
            self._channel = self._listening.accept(lambda: self._job.is_alive)
            if self._channel is not None:
                self._hosts = RequestQueue(self._channel).call("list_hosts")()
        if self._channel is None:
            raise ChannelClosed
        return self._channel


def _address_for(requirements: JobRequirements) -> str | None:
    """This host's address for worker 0; None where worker 0 is on this host.

    Raises:
        LaunchError: no network route leads to worker 0's host.
    """
    hosts = [requirements.cluster.leader]
    if requirements.config.restart.min_hosts is not None:  # worker 0 may move
        hosts += requirements.cluster.hosts
    away = [host for host in hosts if not host.is_this_machine]
    return driver_address(requirements.cluster, away[0]) if away else None


class _OpenGraph(NamedTuple):
    """The graph on which a session was opened.

    Attributes:
        plans: the session's plans.
        served: the graph of the steps.
        config: settings, with hooks of the script, pickled.
    """

    plans: CallPlans
    served: ServedGraph
    config: bytes

    def request(self, hosts: tuple[str, ...]) -> tuple[PlannedMessage, ServedGraph, bytes]:
        """The arguments of the request by which workers on these hosts, given by their addresses, open it."""
        return self.plans.plan_on(hosts), self.served, self.config


class ReservedWorkers:
    """Workers reserved for one call.

    Args:
        number: of the call (`call.next_call`).
        config: settings.
        resource: a resource file; None for workers on this host.

    Raises:
        ParallaxError: before anything is started, when configuration, resource file or host break a rule.
    """

    def __init__(self, number: int, config: Config, resource: str | Path | None) -> None:
        self._number, self._resource = number, resource
        self._requirements = JobRequirements.of(config, resource)
        waiting = take_waiting()
        with ExitStack() as unless_taken:
            if waiting is not None:
                unless_taken.callback(waiting.close)
            if (
                isinstance(waiting, DrivenWorkers)
                and waiting.requirements == self._requirements
                and waiting.are_responding()
            ):
                unless_taken.pop_all()
                self._workers = waiting
                return
        self._workers = DrivenWorkers(self._requirements, number)

    @contextmanager
    def session(self, graph: StepGraph, steps: Mapping[str, GraphStep], config: Config) -> Iterator[RemoteSteps]:
        """Plans a graph, prints the plan, and opens a session on it, or continues with the session of an equal graph.

        Args:
            graph: of the steps.
            steps: by name.
            config: settings, which may differ from those of the workers in the checkpoint folder alone.

        Raises:
            JobFailed: the job has failed, and has reported why.
            ParallaxError: before anything is opened, as `parallel_run`.
        """
        served, plans = ServedGraph.of(graph, steps), None
        has_values = all(place_of_value(one.variable) != INITIAL for one in graph.list_variables())
        if has_values and self._workers.has_graph_open(served):
            log.info("The steps equal those of the previous call: its plan and workers are reused.")
        else:
            self._workers.close_session()  # concurrently
            show_status(f"planning {len(graph.graph.get_operations()):,} ops")
            plans = CallPlans(self._number, graph.graph, config, self._resource)
            servers = plans.plan_on_all().message.servers
            if servers != self._workers.servers:
                self._workers.close()
                self._workers = DrivenWorkers(self._requirements, self._number, plans if servers else None)
        with self._workers.session(plans, graph, served, config) as running:
            yield running
        calls.count_job()

    def release(self) -> None:
        """Lets the workers wait for the next call; a job with servers ends, as these store variables of sessions."""
        if self._workers.is_sound and not self._workers.servers:
            park_job(self._workers, IDLE_S)
        else:
            self._workers.close()


def start_workers(number: int, config: Config, resource: str | Path | None = None) -> None:
    """Starts workers that wait for the call of this number or a later one.

    Args:
        number: of the call.
        config: its settings.
        resource: its resource file; None for workers on this host.

    Raises:
        ParallaxError: before anything is started, when configuration, resource file or host break a rule.
    """
    park_job(DrivenWorkers(JobRequirements.of(config, resource), number), IDLE_S)


def leave_gpus_to_workers(config: Config | None = None, resource: str | Path | None = None) -> bool:
    """Keeps this process off GPUs that the workers of a call with these settings use; returns whether there are any."""
    with suppress(ParallaxError):  # which the call raises
        return leave_gpus(JobRequirements.of(config, resource).cluster)
    return False


@contextmanager
def reserved_workers(number: int, config: Config, resource: str | Path | None = None) -> Iterator[ReservedWorkers]:
    """Reserves workers for a call, which start concurrently; arguments are those of `ReservedWorkers`."""
    reserved = ReservedWorkers(number, config, resource)
    try:
        yield reserved
    finally:
        reserved.release()
