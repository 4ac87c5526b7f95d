"""`parallel_run`: the one call of a user's script, in the launcher and in every worker."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from parallax.cluster import Cluster, local_cluster
from parallax.config import Config
from parallax.environment import Role, Settings, as_variables, python_path_with, settings, visible_gpus, with_defaults
from parallax.errors import ConfigError, LaunchError
from parallax.plan import Plan
from parallax.report import explanation, plan_table
from parallax.resource_file import parse_resource_file
from parallax.runtime.fetches import REPLICAS
from parallax.runtime.job import Job, find_mpirun
from parallax.runtime.launch import launch
from parallax.runtime.planning import Analysed, analyse, decide, plan_for

_UNWRITABLE = (
    "The launcher leaves the plan for the workers in a temporary folder, and {place} cannot be written: {reason}. Free "
    "space there, or name another place with TMPDIR."
)


class JobEnded(SystemExit):
    """Ends the script in a process that is no worker; raised by `parallel_run` alone."""

    @property
    def status(self) -> int:
        """The exit status of the job."""
        return int(self.code or 0)


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
        sync: synchronous training; the only kind the present routes know.
        parallax_config: settings.

    Returns:
        In a worker: the session, the number of workers, this worker's rank, and the replicas a worker (1).

    Raises:
        ParallaxError: before anything is started, when graph, plan, configuration or resource file break a rule.
    """
    config = parallax_config if parallax_config is not None else Config()
    if not isinstance(config, Config):
        raise ConfigError(f"parallax_config must be a parallax.Config, and {config!r} was given.")
    if not sync:
        raise ConfigError("sync=False needs the ps route, which is not built yet: leave it out.")
    wanted = settings()
    if wanted.role == Role.VERIFY_SINGLE:
        from parallax.runtime import verify

        verify.run_single(single_gpu_graph, wanted)
        raise JobEnded(0)
    if wanted.role in (Role.WORKER, Role.VERIFY_WORKER):
        return _worker(single_gpu_graph, config, wanted)
    analysed = analyse(single_gpu_graph)
    cluster = _cluster(resource_info, config, wanted)
    plan = plan_for(analysed, cluster.num_workers, config)
    decide(analysed, plan)  # a plan that cannot be carried out is refused here
    if wanted.role == Role.PLAN:
        _show(plan, wanted)
        raise JobEnded(0)
    raise JobEnded(_launch(single_gpu_graph, analysed, plan, cluster, config, wanted))


def _worker(graph: Any, config: Config, wanted: Settings) -> tuple[Any, int, int, int]:
    from parallax.runtime import verify
    from parallax.runtime.worker_session import open_session

    folder = Path(wanted.job_folder or "")
    verifying = wanted.role == Role.VERIFY_WORKER
    session, size, rank = open_session(graph, config, folder, equal_randomness=verifying)
    if verifying:
        verify.run_worker(graph, session, size, rank, wanted)
        raise JobEnded(0)
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
    if not cluster.is_local:
        away = ", ".join(h.address for h in cluster.hosts if not h.is_this_machine)
        raise LaunchError(f"{file}: jobs run on this machine only for now, and {away} is another one. Name localhost.")
    return cluster


def _show(plan: Plan, wanted: Settings) -> None:
    """What `parallax plan` gives: the table or one variable explained, and the file."""
    text = explanation(plan, wanted.explain) if wanted.explain else plan_table(plan)
    sys.stdout.write(text)
    sys.stdout.flush()
    if wanted.plan_json:
        try:
            Path(wanted.plan_json).write_text(plan.to_json(), encoding="utf-8")
        except OSError as error:
            raise ConfigError(
                f"--json must name a file that can be written: {wanted.plan_json}: {error.strerror}."
            ) from error


def _launch(graph: Any, analysed: Analysed, plan: Plan, cluster: Cluster, config: Config, wanted: Settings) -> int:
    """Starts the workers, waits for the job's end and returns its exit status."""
    from parallax.analysis.capture import node_digests
    from parallax.runtime import verify
    from parallax.runtime.worker_session import write_job

    find_mpirun()
    program = ("-m", "parallax.runtime.worker", *_script())
    verifying = wanted.role == Role.VERIFY
    if verifying:
        verify.check_feeds(graph, cluster.num_workers, wanted)
    seed = config.seed if config.seed is not None else 1 + secrets.randbelow(2**31 - 2)
    sys.stdout.write(plan_table(plan) + (f"Seed {seed}\n" if config.seed is None else ""))
    sys.stdout.flush()
    folder = _job_folder()
    try:
        try:
            write_job(folder, plan, node_digests(graph.as_graph_def()), seed)
        except OSError as error:
            raise LaunchError(_UNWRITABLE.format(place=folder, reason=error.strerror)) from error
        role = Role.VERIFY_WORKER if verifying else Role.WORKER
        path = python_path_with(Path(__file__).resolve().parent.parent)
        mine = as_variables(replace(wanted, role=role, job_folder=str(folder), workers=None, resource=None))
        environment = (*mine.items(), *with_defaults(_worker_defaults(cluster.num_workers)), ("PYTHONPATH", path))
        job = Job(program, cluster.num_workers, environment, config.stall_timeout_s)
        return verify.compare_runs(job, plan, folder, wanted) if verifying else launch(job)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _job_folder() -> Path:
    """A new folder in which the launcher leaves the plan for the workers."""
    try:
        return Path(tempfile.mkdtemp(prefix="parallax-"))
    except OSError as error:
        raise LaunchError(_UNWRITABLE.format(place=tempfile.gettempdir(), reason=error.strerror)) from error


def _worker_defaults(num_workers: int) -> dict[str, str]:
    """Variables for the workers that the environment does not set itself.

    Horovod looks for finished tensors once a cycle, and an exchange is three rounds one after the other: a round costs
    1.1 ms at its default of 1 ms, and 0.25 ms at 0.1 ms (two workers, two cores). Workers that share cores only keep
    each other from working with so short a cycle: four on two cores took 16 s for what takes 10 s at 1 ms.
    """
    shared_cores = num_workers > len(os.sched_getaffinity(0))
    return {
        "TF_CPP_MIN_LOG_LEVEL": "1",  # every worker would repeat TensorFlow's greeting
        "HOROVOD_CYCLE_TIME": "1" if shared_cores else "0.1",
    }


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
