"""`parallel_run`: the one call of a user's script, in the launcher and in every worker."""

from __future__ import annotations

import math
import os
import shutil
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from parallax.analysis.stages import Analysed, analyse, decide, plan_for, simulation_of
from parallax.analysis.whatif.simulate import HostKind
from parallax.cluster.machines import Cluster, local_cluster
from parallax.cluster.resource_file import parse_resource_file
from parallax.errors import ConfigError, LaunchError, ParallaxError
from parallax.logger import log
from parallax.plans.plan import Plan
from parallax.plans.what_if import what_if_from
from parallax.profiles.files import check_writable
from parallax.profiles.plan_inputs import Measured, read_measured
from parallax.report.html.files import write_file
from parallax.report.html.page import plan_page
from parallax.report.html.simulated import simulation_page, simulation_text
from parallax.report.text import explanation, plan_table
from parallax.runtime.check.builds import write_build
from parallax.runtime.check.command import FirstBuild
from parallax.runtime.launcher.dry_run import dry_run_text
from parallax.runtime.launcher.job import Job, layout_of, servers_by_host, worker_defaults
from parallax.runtime.launcher.launch import launch
from parallax.runtime.launcher.mpirun import find_mpirun, this_launcher
from parallax.runtime.measure.options import measure_wish
from parallax.runtime.replan.options import check_possible, replan_wish
from parallax.runtime.trace.options import make_ready, trace_wish
from parallax.runtime.worker import graph_files
from parallax.runtime.worker.fetches import REPLICAS
from parallax.runtime.worker.job_message import Parcel
from parallax.runtime.worker.random_state import drawn_seed
from parallax.runtime.worker.ranks import current_members
from parallax.settings import checked
from parallax.settings.config import Config, moot_settings
from parallax.settings.environment import (
    Role,
    Settings,
    as_variables,
    framework_level,
    python_path_with,
    settings,
    visible_gpus,
    with_defaults,
)

_UNWRITABLE = (
    "A verification keeps both sides' variables in a temporary folder, and {place} cannot be written: {reason}. Free "
    "space there, or name another place with TMPDIR."
)


class JobEnded(SystemExit):
    """Ends the script in a process that is no worker; raised by `parallel_run` alone."""

    @property
    def status(self) -> int:
        """The exit status of the job."""
        return int(self.code or 0)


class GraphChecked(JobEnded):
    """Ends the script that `parallax check` looks at; `found` is what it looks at."""

    def __init__(self, found: FirstBuild) -> None:
        super().__init__(0)
        self.found = found


def parallel_run(
    single_gpu_graph: Any,
    resource_info: str | Path | None = None,
    sync: bool = True,
    parallax_config: Config | None = None,
) -> tuple[Any, int, int, int]:
    """Trains a graph on all workers: plans and launches in the first process, gives a session in each worker.

    The first process prints the plan, starts the script again as every worker, relays their output and leaves with the
    job's exit status; there this call does not return.

    Args:
        single_gpu_graph: a tf.Graph that trains on one device, with its update ops.
        resource_info: a resource file; None for workers on this machine.
        sync: whether every step takes the gradients of all workers. If not, all trained variables are on servers, and
            every worker updates them by itself.
        parallax_config: settings.

    Returns:
        In a worker: the session, the number of workers, this worker's rank, and the replicas a worker (1).

    Raises:
        ParallaxError: before anything is started, when graph, plan, configuration or resource file break a rule.
    """
    config = parallax_config if parallax_config is not None else Config()
    if not isinstance(config, Config):
        raise ConfigError(f"parallax_config must be a parallax.Config, and {config!r} was given.")
    config = replace(config)  # checked again, and what the script assigns later changes nothing
    checked.truth("sync", sync)
    wanted = settings()
    config.compute_dtype = wanted.compute_dtype or config.compute_dtype
    wanted = replace(wanted, compute_dtype=config.compute_dtype)
    if wanted.role == Role.VERIFY_SINGLE:
        from parallax.runtime.verify.sides import run_single

        run_single(single_gpu_graph, wanted)
        raise JobEnded(0)
    if wanted.role == Role.CHECK_BUILD:
        write_build(single_gpu_graph, wanted)
        raise JobEnded(0)
    if wanted.role in (Role.WORKER, Role.VERIFY_WORKER):
        return _worker(single_gpu_graph, config, wanted)
    if wanted.role == Role.CHECK:
        raise GraphChecked(_look(single_gpu_graph, resource_info, sync, config, wanted))
    trace = trace_wish(wanted.trace, wanted.trace_steps)
    measure = measure_wish(wanted) if wanted.role == Role.LAUNCH else None
    for line in moot_settings(config):
        log.info(line)
    analysed = analyse(single_gpu_graph)
    config.cluster_profile = wanted.cluster_profile or config.cluster_profile
    config.model_profile = wanted.model_profile or config.model_profile
    config.plan_file = wanted.plan_file or config.plan_file
    config.wire_dtype = wanted.wire_dtype or config.wire_dtype
    config.accumulate_steps = wanted.accumulate_steps or config.accumulate_steps
    if wanted.role == Role.SIMULATE:
        _simulate(analysed, resource_info, config, sync, wanted)
        raise JobEnded(0)
    cluster = _checked_cluster(single_gpu_graph, resource_info, sync, config, wanted)
    if wanted.role == Role.PROFILE:
        from parallax.runtime.measure.samples import write_profile

        write_profile(single_gpu_graph, analysed, cluster.num_workers, config, wanted)
        raise JobEnded(0)
    if trace is not None and wanted.role == Role.LAUNCH and any(host.is_this_machine for host in cluster.hosts):
        make_ready(trace.folder)
    if measure is not None and measure.path is not None and cluster.hosts[0].is_this_machine:
        check_writable(measure.path)
    plan = plan_for(analysed, layout_of(cluster), config, sync, [host.address for host in cluster.hosts])
    if wanted.role == Role.PLAN:
        _show(plan, wanted)
        if wanted.graph:
            view, folder = analysed.captured.view, Path(wanted.graph)
            graph_files.write_planned(view, decide(analysed, plan), plan, config.seed or 1, folder)
        raise JobEnded(0)
    raise JobEnded(_launch(single_gpu_graph, analysed, plan, cluster, config, wanted))


def _look(graph: Any, resource_info: str | Path | None, sync: bool, config: Config, wanted: Settings) -> FirstBuild:
    """What `parallax check` looks at: the graph, its plan, or why there is none."""
    analysed = plan = None
    refusal = ""
    try:
        analysed = analyse(graph)
        cluster = _checked_cluster(graph, resource_info, sync, config, wanted)
        plan = plan_for(analysed, layout_of(cluster), config, sync, [host.address for host in cluster.hosts])
    except ParallaxError as error:
        refusal = str(error)
    return FirstBuild(graph, analysed, plan, refusal)


def _checked_cluster(
    graph: Any, resource_info: str | Path | None, sync: bool, config: Config, wanted: Settings
) -> Cluster:
    """The machines of a job, when nothing speaks against it but the plan."""
    _check_checkpoints(graph, config)
    check_possible(replan_wish(config, wanted), config, sync)
    cluster = _cluster(resource_info, config, wanted)
    options = (*cluster.mpirun_options, *config.communication_config.mpi_config.words)
    _check_profile(config, cluster.num_workers)
    return replace(cluster, mpirun_options=options)


def _check_checkpoints(graph: Any, config: Config) -> None:
    """Refuses before the start what every worker would refuse."""
    from parallax.runtime.checkpoint.hook import check_global_step

    check_global_step(graph, config.ckpt_config)


def _worker(graph: Any, config: Config, wanted: Settings) -> tuple[Any, int, int, int]:
    from parallax.runtime.open_session import open_session
    from parallax.runtime.verify.sides import run_worker

    verifying = wanted.role == Role.VERIFY_WORKER
    session, size, rank = open_session(
        graph,
        config,
        current_members().parcel,
        verifying,
        Path(wanted.graph) if wanted.graph else None,
        None if verifying else trace_wish(wanted.trace, wanted.trace_steps),
        None if verifying else measure_wish(wanted),
        replan_wish(config, wanted),
        Path(wanted.job_folder or "") if verifying else None,
    )
    if verifying:
        run_worker(graph, session, size, rank, wanted)
        raise JobEnded(0)
    if wanted.verify_first is not None:
        from parallax.runtime.verify.first import VerifiedSteps

        session.verify(partial(VerifiedSteps, wanted.verify_first, members=current_members(), wanted=wanted))
    return session, size, rank, REPLICAS


def _cluster(resource_info: str | Path | None, config: Config, wanted: Settings) -> Cluster:
    """The machines: the command line goes before the script's own arguments."""
    if wanted.workers is not None:
        return local_cluster(wanted.workers, visible_gpus())
    file = wanted.resource or resource_info
    if file is None or str(file) in ("localhost", "127.0.0.1"):
        return local_cluster(config.workers, visible_gpus())
    if not isinstance(file, str | os.PathLike):
        raise ConfigError(f"resource_info must be the path of a resource file, or None, and {file!r} was given.")
    this_machine = local_cluster(config.workers, visible_gpus()).hosts[0]
    cluster = parse_resource_file(file, this_machine)
    if wanted.role == Role.VERIFY and not cluster.is_local:
        away = ", ".join(host.address for host in cluster.hosts if not host.is_this_machine)
        raise ConfigError(
            f"{file}: a verification runs on this machine only, where both sides keep their variables, and {away} is "
            "another one. Name localhost, or give --workers."
        )
    return cluster


def _check_profile(config: Config, num_workers: int) -> None:
    """The worker to be traced must be one of the job's."""
    worker = config.profile_config.profile_worker
    if worker is not None and worker >= num_workers:
        raise ConfigError(
            f"profile_worker must be a worker of the job, from 0 to {num_workers - 1}, and {worker} was given."
        )


def _show(plan: Plan, wanted: Settings) -> None:
    """What `parallax plan` gives: the table or one variable explained, and the file."""
    text = explanation(plan, wanted.explain) if wanted.explain else plan_table(plan, bool(wanted.show_all))
    sys.stdout.write(text)
    sys.stdout.flush()
    if wanted.plan_json:
        write_file(wanted.plan_json, plan.to_json(), "--json")
    if wanted.html:
        write_file(wanted.html, plan_page(plan), "--html")


def _simulate(
    analysed: Analysed, resource_info: str | Path | None, config: Config, sync: bool, wanted: Settings
) -> None:
    """What `parallax simulate` gives: the table of sizes, and the page."""
    named = wanted.resource or resource_info
    kinds, addresses = [HostKind()], []
    if named is not None and str(named) not in ("localhost", "127.0.0.1"):
        cluster = _cluster(resource_info, config, wanted)
        numbers = zip(cluster.hosts, servers_by_host(cluster), strict=True)
        kinds = [HostKind(host.num_workers, servers, host.link_bytes_per_s) for host, servers in numbers]
        addresses = [host.address for host in cluster.hosts]
    simulation = simulation_of(analysed, kinds, config, sync, what_if_from(wanted.what_if or ""), addresses)
    sys.stdout.write(simulation_text(simulation))
    sys.stdout.flush()
    if wanted.html:
        write_file(wanted.html, simulation_page(simulation), "--html")


def _launch(graph: Any, analysed: Analysed, plan: Plan, cluster: Cluster, config: Config, wanted: Settings) -> int:
    """Starts the workers, waits for the job's end and returns its exit status."""
    from parallax.runtime.verify.claimed import check_claims
    from parallax.runtime.verify.command import check_feeds, compare_runs, prepare
    from parallax.runtime.verify.first import check_comparable
    from parallax.runtime.verify.sides import keep_graph

    verifying = wanted.role == Role.VERIFY
    find_mpirun()
    if wanted.verify_first is not None:
        check_comparable(analysed, plan)
    if verifying:
        check_feeds(graph, cluster.num_workers, wanted)
        if wanted.claims:
            check_claims(plan, wanted.joined_args, wanted.replan)
    seed = config.seed if config.seed is not None else drawn_seed()
    sys.stdout.write(plan_table(plan) + (f"Seed {seed}\n" if config.seed is None else ""))
    sys.stdout.flush()
    mine = replace(
        wanted,
        role=Role.WORKER,
        workers=None,
        resource=None,
        cluster_profile=None,
        model_profile=None,
        plan_file=None,
    )
    if wanted.role == Role.DRY_RUN:
        sys.stdout.write("\n" + dry_run_text(_job(graph, plan, cluster, config, mine, seed), this_launcher()))
        return 0
    if not verifying:
        return launch(_job(graph, plan, cluster, config, mine, seed))
    folder = _job_folder()
    try:
        mine = replace(mine, role=Role.VERIFY_WORKER, job_folder=str(folder))
        job = _job(graph, plan, cluster, config, mine, seed)
        keep_graph(graph, folder)
        wanted = replace(wanted, seed=seed)
        hidden = prepare(graph, analysed, plan, folder, cluster.num_workers, wanted)
        return compare_runs(job, plan, folder, hidden, wanted)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _job(graph: Any, plan: Plan, cluster: Cluster, config: Config, mine: Settings, seed: int) -> Job:
    """The job of a plan; `mine` is what its workers are to do."""
    from parallax.analysis.reading.launcher_graph import packed

    looks = replan_wish(config, mine) is not None
    addresses = [host.address for host in cluster.hosts]
    cluster_profile = read_measured(config.cluster_profile, None) if looks else Measured()
    cluster_profile.check_names(addresses)
    parcel = Parcel(
        plan=plan.to_json(),
        # The one process of a verification has every value of the launcher's: so must the workers.
        graph=packed(graph, math.inf) if mine.role == Role.VERIFY_WORKER else packed(graph),
        seed=seed,
        hosts=plan.layout.host_by_rank,
        servers=plan.servers,
        addresses=tuple(addresses),
        ports=cluster.ports,
        cluster="" if cluster_profile.cluster is None else cluster_profile.cluster.to_json(),
        cluster_name=cluster_profile.cluster_name,
    )
    return Job(
        ("-m", "parallax.runtime.worker.main", *_script()),
        cluster,
        plan.servers,
        (
            *as_variables(mine).items(),
            *with_defaults(worker_defaults(cluster, plan.servers)),
            ("PYTHONPATH", python_path_with(Path(__file__).resolve().parent.parent)),
        ),
        config.stall_timeout_s,
        parcel.to_bytes(),
        Path(config.redirect_path) if config.redirect_path is not None else None,
        framework_level(),
    )


def _job_folder() -> Path:
    """A new folder in which both sides of a verification leave their variables."""
    try:
        return Path(tempfile.mkdtemp(prefix="parallax-"))
    except OSError as error:
        raise LaunchError(_UNWRITABLE.format(place=tempfile.gettempdir(), reason=error.strerror)) from error


def _script() -> tuple[str, ...]:
    """How this process was started, for the workers to be started alike: a file, or -m and a module, and arguments."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name == "__main__":  # a folder or a zip file
        return (str(Path(sys.argv[0]).resolve()), *sys.argv[1:])
    if spec is not None:
        return ("-m", spec.name.removesuffix(".__main__"), *sys.argv[1:])
    file = getattr(main, "__file__", None)
    if file is None:
        raise LaunchError(
            "The workers run the script that called parallel_run, and this process runs none: it was started without "
            "a file, as a notebook is. Write the training loop to a file and run that."
        )
    return (str(Path(file).resolve()), *sys.argv[1:])
