"""Builds the job for a call of `parallel_run`: its hosts, the script's arguments, and the job message."""

from __future__ import annotations

import math
import os
import socket
import sys
import tempfile
import uuid
from dataclasses import replace
from pathlib import Path

from parallax.analysis.graph_to_plan import AnalysedGraph
from parallax.base.errors import ConfigError, LaunchError
from parallax.base.types import Graph
from parallax.cluster.machines import Cluster, local_cluster
from parallax.cluster.plan_inputs import PlanInputs, read_measured
from parallax.cluster.resource_file import parse_resource_file
from parallax.plans.plan import Plan
from parallax.runtime.launcher.job import Job, layout_of, worker_variables
from parallax.runtime.replan.options import replan_options
from parallax.runtime.worker.job_message import JobMessage
from parallax.settings.config import Config
from parallax.settings.environment import Role, Settings, framework_level, is_commanded, visible_gpus

CALLED = "parallax.runtime.worker.call_function"
"""The module that workers run to call a function."""

_UNWRITABLE = (
    "A verification keeps both sides' variables in a temporary folder, but {place} cannot be written: {reason}. "
    "Free space there, or name another place with TMPDIR."
)


def cluster_of(resource_info: str | Path | None, config: Config, requested: Settings) -> Cluster:
    """Returns the machines; the command line overrides the script's own arguments."""
    if requested.workers is not None:
        return local_cluster(requested.workers, visible_gpus())
    file = requested.resource or resource_info
    if file is None or str(file) in ("localhost", "127.0.0.1"):
        return local_cluster(config.workers, visible_gpus())
    if not isinstance(file, str | os.PathLike):
        raise ConfigError(f"resource_info must be the path of a resource file, or None, got {file!r}.")
    this_machine = local_cluster(config.workers, visible_gpus()).hosts[0]
    cluster = parse_resource_file(file, this_machine)
    if requested.role == Role.VERIFY and not cluster.is_local:
        away = ", ".join(host.address for host in cluster.hosts if not host.is_this_machine)
        raise ConfigError(
            f"{file}: a verification runs only on this machine, where both sides keep their variables, but {away!r} "
            "is another machine. Name localhost, or give --workers."
        )
    return cluster


def check_profile(config: Config, num_workers: int) -> None:
    """Requires the worker to be traced to be one of the job's."""
    worker = config.profile_config.profile_worker
    if worker is not None and worker >= num_workers:
        raise ConfigError(f"profile_worker must be a worker of the job, from 0 to {num_workers - 1}, got {worker}.")


def job_of(
    graph: Graph, analysed: AnalysedGraph, plan: Plan, cluster: Cluster, config: Config, mine: Settings, seed: int
) -> Job:
    """Builds the job of a plan, whose workers run the script; `mine` has the workers' settings."""
    from parallax.analysis.reading.construction.launcher_graph import pack_graph

    message = replace(
        message_of(plan, cluster, config, mine, seed),
        # The one process of a verification has every value of the launcher's: so must the workers.
        graph=pack_graph(graph, math.inf) if mine.role == Role.VERIFY_WORKER else pack_graph(graph),
        spec=analysed.to_json(),
    )
    return job_with(message, cluster, config, mine)


def message_of(plan: Plan, cluster: Cluster, config: Config, mine: Settings, seed: int) -> JobMessage:
    """Builds the message to workers about a plan, without the graph; `mine` has the workers' settings."""
    looks = replan_options(config, mine) is not None
    cluster_profile = read_measured(config.cluster_profile, None) if looks else PlanInputs()
    cluster_profile.check_names([host.address for host in cluster.hosts])
    return replace(
        message_without_plan(cluster, plan.servers),
        plan=plan.to_json(),
        seed=seed,
        cluster="" if cluster_profile.cluster is None else cluster_profile.cluster.to_json(),
        cluster_name=cluster_profile.cluster_name,
    )


def message_without_plan(cluster: Cluster, servers: tuple[int, ...]) -> JobMessage:
    """Builds the message to processes that wait for a plan.

    Args:
        cluster: their machines.
        servers: the host number of each server.
    """
    hosts = layout_of(cluster).host_by_rank
    addresses = tuple(host.address for host in cluster.hosts)
    return JobMessage(
        plan="", graph=b"", seed=0, hosts=hosts, servers=servers, addresses=addresses, ports=cluster.ports
    )


def job_with(message: JobMessage, cluster: Cluster, config: Config, mine: Settings) -> Job:
    """Builds the job whose processes receive a message; `mine` has its workers' settings."""
    calls = message.function or mine.call is not None
    words = ("-m", CALLED) if calls else script_words()
    return Job(
        ("-m", "parallax.runtime.worker.main", *words),
        cluster,
        message.servers,
        worker_variables(mine, cluster, message.servers),
        config.stall_timeout_s,
        message.pieces(),
        _output_folder(config, mine.call),
        framework_level(),
        host_timeout_s=config.host_timeout_s,
        preemption_grace_s=_preemption_grace_s(config, mine),
    )


def _job_name() -> str:
    """The name of a job for `Settings.job`."""
    launcher = f"launched by process {os.getpid()} on host {socket.gethostname()}"
    return f"{uuid.uuid4().hex} {Path(sys.argv[0]).name} ({launcher})"


def of_workers(requested: Settings, config: Config) -> Settings:
    """Returns the settings of a job's workers, given the launching process's settings `requested`."""
    return replace(
        with_cluster(requested, config),
        role=Role.WORKER,
        workers=None,
        resource=None,
        cluster_profile=None,
        model_profile=None,
        plan_file=None,
        max_restarts=None,
        min_hosts=None,
        no_spare=None,
        host_timeout_s=None,
        job=_job_name() if config.ckpt_config.ckpt_dir is not None else None,
        memory_job=uuid.uuid4().hex if config.ckpt_config.memory_steps is not None else None,
        by_itself=None if is_commanded() else True,
    )


def _output_folder(config: Config, call: int | None) -> Path | None:
    """The folder of the files with each rank's output, if any; later calls of a script have their own folders."""
    if config.redirect_path is None:
        return None
    folder = Path(config.redirect_path)
    return folder if call in (None, 1) else folder / f"call-{call}"


def _preemption_grace_s(config: Config, mine: Settings) -> float | None:
    """The seconds that a preempted job has to save; None if it writes no checkpoints, as in a verification."""
    saves = config.ckpt_config.ckpt_dir is not None and mine.role == Role.WORKER
    return config.ckpt_config.preemption_grace_s if saves else None


def with_cluster(requested: Settings, config: Config) -> Settings:
    """Returns the settings with the fingerprint of the cluster profile, which only the launcher's host has."""
    cluster = read_measured(config.cluster_profile, None).cluster
    return requested if cluster is None else replace(requested, cluster=cluster.fingerprint)


def new_folder() -> Path:
    """Creates a folder in which both sides of a verification save their variables."""
    try:
        return Path(tempfile.mkdtemp(prefix="parallax-"))
    except OSError as error:
        raise LaunchError(_UNWRITABLE.format(place=tempfile.gettempdir(), reason=error.strerror)) from error


def script_words() -> tuple[str, ...]:
    """The command line by which workers start as this process did: a file, or -m and a module, and arguments."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name == "__main__":  # a folder or a zip file
        return (str(Path(sys.argv[0]).resolve()), *sys.argv[1:])
    if spec is not None:
        return ("-m", spec.name.removesuffix(".__main__"), *sys.argv[1:])
    file = getattr(main, "__file__", None)
    if file is None or file.startswith("<") or Path(file).is_fifo():  # <stdin>, and /dev/fd/63 of a shell's <(...)
        raise LaunchError(
            "The workers run the script that called parallel_run, but this process was started without a file (as a "
            "notebook is, or a script read from a pipe). Write the training loop to a file and run that."
        )
    return (str(Path(file).resolve()), *sys.argv[1:])
