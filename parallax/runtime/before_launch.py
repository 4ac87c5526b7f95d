"""Checks the launching process and this host before a job is launched."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf

from parallax.base.errors import LaunchError
from parallax.cluster.machines import GPU_FOLDER, Cluster
from parallax.report.logger import log
from parallax.report.text import bytes_text
from parallax.runtime.launcher.mpirun import find_mpirun
from parallax.runtime.launcher.own_process import check_own_process
from parallax.runtime.make_job import script_words
from parallax.runtime.measure.memory import free_bytes
from parallax.runtime.worker.script import show_errors_briefly

_HAS_GPUS = (
    "TensorFlow in this process has already taken the memory of the GPUs, which workers need. Call "
    "parallax.keras.use() right after the imports, or start the script with `parallax run`."
)
WORKER_BYTES = 250_000_000
"""Memory of one worker after importing TensorFlow 2.21, before its first variable."""


def check_launching(runs_script: bool, cluster: Cluster, starts: bool) -> None:
    """Refuses, before anything is printed or started, a process or a machine from which no job can be started.

    From here on Python shows an uncaught error of Parallax as the `parallax` command does, without frames.

    Args:
        runs_script: whether workers run this process's script.
        cluster: the machines of the job.
        starts: whether the job is to be started, rather than its command shown.

    Raises:
        LaunchError: names the missing thing: mpirun, a script that workers can run, memory for them.
    """
    show_errors_briefly()
    check_own_process()
    find_mpirun()
    if runs_script:
        script_words()
    if starts:
        check_memory(cluster)
    if missing := missing_gpus(cluster, tf.test.is_built_with_cuda()):
        log.warning(missing)


def check_memory(cluster: Cluster, free: int | None = None) -> None:
    """Refuses more workers on this machine than its memory holds after their imports: they would be killed, or swap.

    Args:
        cluster: the machines of the job; other hosts are ignored.
        free: bytes available to processes here; None to measure them.

    Raises:
        LaunchError: says how many fit.
    """
    workers = sum(host.num_workers for host in cluster.hosts if host.is_this_machine)
    free = free_bytes() if free is None else free
    if workers * WORKER_BYTES > free:
        fit = free // WORKER_BYTES
        remedy = f"Start at most {fit}." if fit else "End the programs that use it."
        raise LaunchError(
            f"{workers} workers on this machine need at least {bytes_text(workers * WORKER_BYTES)}, "
            f"{bytes_text(WORKER_BYTES)} each before the first variable, but only {bytes_text(free)} are free. "
            f"{remedy}"
        )


def missing_gpus(cluster: Cluster, is_cuda_build: bool, gpu_folder: Path = GPU_FOLDER) -> str:
    """The user message about GPUs that are named for this machine but unusable by its workers; empty if all are usable.

    Args:
        cluster: the machines of the job; other hosts are ignored.
        is_cuda_build: whether TensorFlow is built for GPUs.
        gpu_folder: where the driver lists GPUs.
    """
    there = len(list(gpu_folder.iterdir())) if gpu_folder.is_dir() else 0
    for host in cluster.hosts:
        if not host.is_this_machine or not host.gpus:
            continue
        missing = [gpu for gpu in host.gpus if gpu >= there or not is_cuda_build]
        if not missing:
            continue
        why = f"this machine has {there or 'none'}"
        if there and not is_cuda_build:
            why = "this TensorFlow is built without CUDA"
        numbers = ", ".join(map(str, missing))
        return f"{host.address} is to use GPU {numbers}, but {why}: these workers train on CPUs."
    return ""


def leave_gpus(cluster: Cluster) -> bool:
    """Keeps TensorFlow in this process off GPUs that local workers use: it would take nearly all of their memory.

    Args:
        cluster: the machines of the job that this process drives.

    Returns:
        Whether workers of this machine use GPUs.
    """
    if not any(host.is_this_machine and host.gpus for host in cluster.hosts):
        return False
    try:
        tf.config.set_visible_devices([], "GPU")
    except RuntimeError:
        log.warning(_HAS_GPUS)
    return True
