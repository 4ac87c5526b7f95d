"""The public functions `parallel_run`, called in the launcher and in every worker, and `plan`.

The behaviour of `parallel_run` depends on the role of the process; `_BY_ROLE` has a function for each.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from parallax.analysis.graph_to_plan import analyse_for, rewrites_of, simulation_of
from parallax.analysis.whatif.simulate import HostKind
from parallax.base.errors import ParallaxError
from parallax.base.types import Graph, Session
from parallax.cluster.machines import Cluster
from parallax.entry.planned_call import (
    Call,
    PlannedCall,
    check_outputs,
    checked_call,
    checked_cluster,
    plan_call,
    plan_on,
    show_plan,
)
from parallax.plans.plan import Plan
from parallax.plans.what_if import what_if_from
from parallax.report.memory import memory_table
from parallax.report.plan_table import PrintedPlan, explain_variable, plan_table
from parallax.report.show import write_file
from parallax.runtime.before_launch import check_launching
from parallax.runtime.launcher.job import Job, servers_by_host
from parallax.runtime.launcher.launch import launch
from parallax.runtime.launcher.mpirun import this_launcher
from parallax.runtime.launcher.restarts.waiting_job import end_waiting_job
from parallax.runtime.make_job import cluster_of, job_of, new_folder, of_workers, with_cluster
from parallax.runtime.measure.options import measure_options
from parallax.runtime.planned_job import check_restarts, launch_planned
from parallax.runtime.replan.options import replan_options
from parallax.runtime.trace.options import trace_options
from parallax.runtime.worker.ranks import current_process_group
from parallax.runtime.worker.session.fetches import REPLICAS
from parallax.settings.config import Config
from parallax.settings.environment import Role

if TYPE_CHECKING:
    from parallax.runtime.check.command import FirstBuild


class JobEnded(SystemExit):
    """Ends the script in a process that is no worker; raised by `parallel_run` alone."""

    @property
    def status(self) -> int:
        """The exit status of the job."""
        return int(self.code or 0)


class GraphBuilt(JobEnded):
    """Ends the script under `parallax check` or `parallax checkpoint export`; `graph` is the graph for the command."""

    def __init__(self, graph: FirstBuild | Graph) -> None:
        super().__init__(0)
        self.graph = graph


def parallel_run(
    single_gpu_graph: Graph,
    resource_info: str | Path | None = None,
    sync: bool | str = True,
    parallax_config: Config | None = None,
) -> tuple[Session, int, int, int]:
    """Trains a graph on all workers: plans and launches in the first process, returns a session in each worker.

    The first process prints the plan, starts the script again as every worker, relays their output and exits with the
    job's exit status; there this call does not return.

    Args:
        single_gpu_graph: a tf.Graph that trains on one device, with its update ops.
        resource_info: a resource file; None for workers on this machine.
        sync: whether every step uses the gradients of all workers. If not, all trained variables are on servers, and
            every worker updates them by itself; `bounded`: it does so at most `Config.staleness` runs ahead of others.
        parallax_config: settings.

    Returns:
        In a worker: the session, the number of workers, this worker's rank, and the replicas per worker (1). With a
        model in stages, replicas are counted instead of workers.

    Raises:
        ParallaxError: before anything is started, when graph, plan, configuration or resource file are invalid.
    """
    return perform(checked_call(single_gpu_graph, resource_info, sync, parallax_config))


def plan(
    single_gpu_graph: Graph,
    resource_info: str | Path | None = None,
    sync: bool | str = True,
    parallax_config: Config | None = None,
) -> Plan:
    """Returns the plan that `parallel_run` makes of these arguments. Starts nothing; works in a notebook too.

    Args:
        single_gpu_graph: a tf.Graph that trains on one device, with its update ops.
        resource_info: a resource file; None for workers on this machine.
        sync: whether every step uses the gradients of all workers.
        parallax_config: settings.

    Returns:
        The plan; `print` shows it as the command `parallax plan` does.

    Raises:
        ParallaxError: when graph, plan, configuration or resource file are invalid.
    """
    return PrintedPlan.of(plan_call(checked_call(single_gpu_graph, resource_info, sync, parallax_config)).plan)


def perform(call: Call) -> tuple[Session, int, int, int]:
    """Executes the role of this process at a call; returns the result of `parallel_run`.

    Raises:
        JobEnded: in a process that is no worker.
        ParallaxError: as `parallel_run`.
    """
    result = _BY_ROLE[call.requested.role](call)
    if isinstance(result, int):
        raise JobEnded(result)
    return result


def _run_single_process(call: Call) -> int:
    """Runs the one process of a verification."""
    from parallax.runtime.verify.sides import run_single

    run_single(call.graph, call.requested, call.config.lazy_updates)
    return 0


def _check_build(call: Call) -> int:
    """Runs the second build of a check."""
    from parallax.runtime.check.builds import write_build

    write_build(call.graph, call.requested)
    return 0


def _check(call: Call) -> NoReturn:
    """Collects the input of `parallax check`: the graph, its plan, or why there is none."""
    from parallax.runtime.check.command import FirstBuild

    analysed = plan = None
    refusal = ""
    try:
        analysed = analyse_for(call.graph, call.config, call.sync)
        plan = plan_on(checked_cluster(call), analysed, call)
    except ParallaxError as error:
        refusal = str(error)
    raise GraphBuilt(FirstBuild(call.graph, analysed, plan, refusal))


def _raise_graph(call: Call) -> NoReturn:
    raise GraphBuilt(call.graph)


def _worker(call: Call) -> tuple[Session, int, int, int] | int:
    from parallax.runtime.open_session import SessionExtras, open_session
    from parallax.runtime.verify.sides import run_worker

    graph, config, requested = call.graph, call.config, call.requested
    verifying = requested.role == Role.VERIFY_WORKER
    extras = SessionExtras(
        equal_randomness=verifying,
        graph_folder=Path(requested.graph) if requested.graph else None,
        trace=None if verifying else trace_options(requested.trace, requested.trace_steps),
        measure=None if verifying else measure_options(requested),
        replan=replan_options(config, requested),
        verification_folder=Path(requested.job_folder or "") if verifying else None,
        has_values=requested.call is not None,
        decisions=call.decisions,
    )
    session, size, rank = open_session(graph, config, current_process_group().parcel, extras)
    if verifying:
        run_worker(graph, session, size, rank, requested, current_process_group())
        return 0
    if requested.verify_first is not None:
        from parallax.runtime.verify.verified_steps import VerifiedSteps

        session.verify(
            partial(VerifiedSteps, requested.verify_first, members=current_process_group(), requested=requested)
        )
    return session, size, rank, REPLICAS


def _show(call: Call) -> int:
    """Implements `parallax plan`: the table or one variable explained, and the files; 1 if memory is insufficient."""
    requested = call.requested
    analysed, cluster, plan = plan_call(call)
    text = explain_variable(plan, requested.explain) if requested.explain else plan_table(plan, bool(requested.all))
    json, fits = plan.to_json() if requested.json else "", True
    if requested.memory:
        from parallax.runtime.measure.memory import planned_memory

        memory = planned_memory(analysed, plan, cluster, call.config, call.sync, call.config.examples or 0)
        text, json = f"{text}\n{memory_table(memory)}", memory.to_json()
        fits = all(host.fits for host in memory.hosts)
    sys.stdout.write(text)
    sys.stdout.flush()
    if requested.json:
        write_file(requested.json, json, "--json")
    if requested.html:
        from parallax.report.html.page import plan_page

        write_file(requested.html, plan_page(plan), "--html")
    if requested.graph:
        from parallax.runtime.worker.reports import graph_files

        rewrites, seed = rewrites_of(analysed, plan), call.config.seed or 1
        graph_files.write_planned(analysed.captured.view, rewrites, plan, seed, Path(requested.graph))
    return 0 if fits else 1


def _profile(call: Call) -> int:
    """Implements `parallax profile`: writes a model profile."""
    from parallax.runtime.measure.samples import write_profile

    analysed, cluster = analyse_for(call.graph, call.config, call.sync), checked_cluster(call)
    write_profile(call.graph, analysed, cluster.num_workers, call.config, with_cluster(call.requested, call.config))
    return 0


def _simulate(call: Call) -> int:
    """Implements `parallax simulate`: the table of sizes, and the page."""
    from parallax.report.html.simulation_page import simulation_page, simulation_text

    analysed, requested = analyse_for(call.graph, call.config, call.sync), call.requested
    named = requested.resource or call.resource_info
    kinds, addresses = [HostKind()], []
    if named is not None and str(named) not in ("localhost", "127.0.0.1"):
        cluster = cluster_of(call.resource_info, call.config, requested)
        numbers = zip(cluster.hosts, servers_by_host(cluster), strict=True)
        kinds = [HostKind(host.num_workers, servers, host.link_bytes_per_s) for host, servers in numbers]
        addresses = [host.address for host in cluster.hosts]
    what_if = what_if_from(requested.what_if or "")
    simulation = simulation_of(analysed, kinds, call.config, call.sync, what_if, addresses)
    sys.stdout.write(simulation_text(simulation))
    sys.stdout.flush()
    if requested.html:
        write_file(requested.html, simulation_page(simulation), "--html")
    return 0


def _run(call: Call) -> int:
    """Implements `parallax run` and `parallax verify`, and the script itself: returns a job's exit status."""
    planned = plan_call(call)
    if call.requested.role == Role.LAUNCH:
        check_outputs(call, planned.cluster)
    return _launch(call, planned)


def _launch(call: Call, planned: PlannedCall) -> int:
    """Starts the workers, waits for the job's end and returns its exit status."""
    from parallax.runtime.verify.claim_records import check_claims
    from parallax.runtime.verify.command import check_feeds, compare_runs, prepare
    from parallax.runtime.verify.sides import ranks_by_island, save_graph
    from parallax.runtime.verify.verified_steps import check_comparable

    graph, config, requested, verifying = call.graph, call.config, call.requested, call.requested.role == Role.VERIFY
    analysed, cluster, plan = planned
    end_waiting_job()
    if not verifying:
        check_restarts(config, cluster, requested.call is not None)
    check_launching(requested.call is None, cluster, starts=requested.role != Role.DRY_RUN)
    if requested.verify_first is not None:
        check_comparable(analysed, plan)
    if verifying:
        check_feeds(graph, ranks_by_island(plan), requested)
        if requested.claims:
            check_claims(plan, requested.joined_args, requested.replan)
    seed = show_plan(plan, config)
    mine = of_workers(requested, config)
    if requested.role == Role.DRY_RUN:
        from parallax.runtime.launcher.dry_run import dry_run_text

        job = job_of(graph, analysed, plan, cluster, config, mine, seed)
        sys.stdout.write("\n" + dry_run_text(job, this_launcher()))
        return 0
    if not verifying:

        def job_on(plan: Plan, cluster: Cluster) -> Job:
            return job_of(graph, analysed, plan, cluster, config, mine, seed)

        plan_for_hosts = partial(plan_on, analysed=analysed, call=call)
        return launch_planned(config, (cluster, plan), plan_for_hosts, job_on, launch, mine.memory_job).status
    folder = new_folder()
    try:
        mine = replace(mine, role=Role.VERIFY_WORKER, job_folder=str(folder))
        job = job_of(graph, analysed, plan, cluster, config, mine, seed)
        save_graph(graph, folder)
        requested = replace(requested, seed=seed)
        hidden = prepare(graph, analysed, plan, folder, requested)
        return compare_runs(job, plan, folder, hidden, requested)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


_BY_ROLE: dict[Role, Callable[[Call], tuple[Session, int, int, int] | int]] = {
    Role.LAUNCH: _run,
    Role.DRY_RUN: _run,
    Role.VERIFY: _run,
    Role.PLAN: _show,
    Role.PROFILE: _profile,
    Role.SIMULATE: _simulate,
    Role.CHECK: _check,
    Role.CHECK_BUILD: _check_build,
    Role.EXPORT: _raise_graph,
    Role.WORKER: _worker,
    Role.VERIFY_WORKER: _worker,
    Role.VERIFY_SINGLE: _run_single_process,
}
"""The behaviour of this process: it returns a session, or ends with an exit status."""
