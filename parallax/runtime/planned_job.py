"""Runs a planned job as often as its configuration allows: checks before each start, and the plan on fewer hosts."""

from __future__ import annotations

import sys
from collections.abc import Callable

from parallax.base.errors import ConfigError
from parallax.cluster.machines import Cluster
from parallax.plans.plan import Plan
from parallax.report.plan_table import plan_table
from parallax.runtime.launcher.host_memory import host_memory
from parallax.runtime.launcher.job import Job
from parallax.runtime.launcher.launch import JobEnd
from parallax.runtime.launcher.restarts.restart_loop import RestartOptions, launch_restarting
from parallax.runtime.launcher.restarts.spare import Launch
from parallax.settings.config import Config
from parallax.settings.options import variable_of

_NO_CHECKPOINTS = (
    "max_restarts={number} needs checkpoints to resume from, but ckpt_config is not set. Set "
    "ckpt_config=parallax.CheckPointConfig(FOLDER, save_ckpt_steps=K) or CheckPointConfig(memory_steps=1), or remove "
    "max_restarts."
)
_NO_RESTARTS = (
    "memory_steps={number} needs max_restarts, since it serves jobs that are restarted. Set "
    "restart=parallax.RestartConfig(max_restarts=N), or remove memory_steps."
)
_NO_LOOP = (
    "memory_steps={number} is only for scripts whose loop follows the global step, not for a call such as `fit`. Set "
    "max_restarts alone, with which a Keras `fit` resumes, or write checkpoints to a folder "
    "(CheckPointConfig.ckpt_dir), and remove memory_steps."
)

# Modules that processes of a spare job import: none that accesses the job at import time. No worker will import a
# module that the launching process has not imported.
_TO_IMPORT = ("parallax.runtime.open_session", "horovod.tensorflow")
_IF_IMPORTED = ("keras", "tf_keras")


def check_restarts(config: Config, cluster: Cluster, is_call: bool) -> None:
    """Refuses restarts that would lose all progress, or are impossible.

    Args:
        config: the configuration.
        cluster: all machines.
        is_call: the job is for a call of the script, which continues where it was.

    Raises:
        ConfigError: names the missing setting.
    """
    restart, memory_steps = config.restart, config.ckpt_config.memory_steps
    if memory_steps is not None and (is_call or not restart.max_restarts):
        raise ConfigError((_NO_LOOP if is_call else _NO_RESTARTS).format(number=memory_steps))
    if restart.max_restarts and not config.ckpt_config.keeps_state and not is_call:
        raise ConfigError(_NO_CHECKPOINTS.format(number=restart.max_restarts))
    if restart.min_hosts is None:
        return
    if not restart.max_restarts:
        raise ConfigError(f"min_hosts={restart.min_hosts} needs max_restarts. Set max_restarts.")
    if restart.min_hosts > len(cluster.hosts):
        raise ConfigError(
            f"min_hosts must be at most the number of hosts, {len(cluster.hosts)}, got {restart.min_hosts}."
        )
    if restart.min_hosts < len(cluster.hosts) and config.plan_file is not None:
        raise ConfigError(
            f"min_hosts={restart.min_hosts} lets the job continue on fewer hosts, for which {config.plan_file} is no "
            "plan. Remove one of the two."
        )


def launch_planned(
    config: Config,
    planned: tuple[Cluster, Plan],
    plan_on: Callable[[Cluster], Plan],
    job_of: Callable[[Plan, Cluster], Job],
    launch: Launch,
    memory_job: str | None = None,
) -> JobEnd:
    """Runs a job, and restarts it after failures if configured; returns the last end.

    Args:
        config: the configuration.
        planned: all machines, and the plan for them.
        plan_on: plans for some of them.
        job_of: builds the job of a plan.
        launch: as `launch.launch`.
        memory_job: the name of its state in the memory of hosts; None without such a state.
    """
    if memory_job is None:
        return _launch_planned(config, planned, plan_on, job_of, launch)
    with host_memory(planned[0], config.ckpt_config.memory_dir, memory_job):
        return _launch_planned(config, planned, plan_on, job_of, launch)


def _launch_planned(
    config: Config,
    planned: tuple[Cluster, Plan],
    plan_on: Callable[[Cluster], Plan],
    job_of: Callable[[Plan, Cluster], Job],
    launch: Launch,
) -> JobEnd:
    cluster, plan = planned
    restart = config.restart
    if not restart.max_restarts:
        return launch(job_of(plan, cluster))
    addresses = tuple(host.address for host in cluster.hosts)
    jobs = {addresses: job_of(plan, cluster)}

    def job_on(chosen: tuple[str, ...]) -> Job:
        if chosen not in jobs:
            fewer = cluster.restrict_to(chosen)
            other = plan_on(fewer)
            sys.stdout.write(plan_table(other))
            sys.stdout.flush()
            jobs[chosen] = job_of(other, fewer)
        return jobs[chosen]

    has_checkpoints = config.ckpt_config.keeps_state
    spare = None if restart.no_spare else standby()
    is_behind = config.ckpt_config.memory_steps is not None
    options = RestartOptions(restart.max_restarts, restart.min_hosts, has_checkpoints, is_behind, spare)
    return launch_restarting(options, addresses, job_on, launch)


def standby(runs_script: bool = True) -> tuple[str, str]:
    """The variable, with its value, that makes processes of a spare job import and wait.

    Args:
        runs_script: whether they will run the script, with the modules that it has imported.
    """
    modules = [*_TO_IMPORT, *(name for name in _IF_IMPORTED if runs_script and name in sys.modules)]
    return variable_of("stand_by"), ",".join(modules)
