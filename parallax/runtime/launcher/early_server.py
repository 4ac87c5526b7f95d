"""Fork server of a future job: it imports TensorFlow while this process does the same and runs its script.

`parallax run` starts it before anything else, for workers on this machine; there is at most one. The next job that is
launched uses it if its workers need the environment that the server was started with. The job then adopts the id and
the secret that the server has had from its start.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import uuid
from collections.abc import Mapping

from parallax.cluster.machines import Cluster
from parallax.runtime.launcher.job import Job, worker_variables
from parallax.runtime.launcher.mpirun import Launcher, mpirun_environment, this_launcher
from parallax.runtime.supervisor.preload import SECRET
from parallax.runtime.supervisor.processes import JOB_ID
from parallax.runtime.supervisor.worker_process import (
    BACKLOG,
    FORK_SERVER,
    PLACE_OF_RANK,
    WORKER,
    WORKER_DEFAULTS,
    server_name,
    tied_to,
)
from parallax.settings.environment import SETTINGS_VARIABLES, Role, Settings
from parallax.settings.options import variable_of

_WITHOUT_KERAS = variable_of("without_keras")
_AT_START = (
    *(_WITHOUT_KERAS, "PYTHON", "LD_", "LC_", "LANG", "MALLOC_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_"),
    *("TF_", "XLA_", "CUDA_", "HOROVOD_", "NCCL_"),
)
"""Prefixes of variables that an interpreter, an import or a library at load time reads."""
_PATIENCE_S = 5.0
_OF_A_JOB = {JOB_ID, SECRET, *SETTINGS_VARIABLES} - {_WITHOUT_KERAS}


class EarlyServer:
    """A fork server that waits for its job.

    Args:
        job: one similar to the coming job.
        launcher: the launcher of jobs.

    Attributes:
        job_id, secret: of the job that it can serve.
    """

    def __init__(self, job: Job, launcher: Launcher) -> None:
        self.job_id, self.secret = uuid.uuid4().hex, secrets.token_hex(32)
        self._environment = mpirun_environment(job, self.job_id, self.secret, launcher)
        lifeline, self._held_fd = os.pipe()
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(server_name(self.job_id))
            tie = tied_to(os.getpid())

            def listen() -> None:  # in the server, whose process others then see as the peer
                tie()
                listening.listen(BACKLOG)

            self._process = subprocess.Popen(
                [launcher.python, *FORK_SERVER, str(listening.fileno()), str(lifeline)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # the workers retry an import that fails
                stderr=subprocess.DEVNULL,
                env={**WORKER_DEFAULTS, **self._environment, **PLACE_OF_RANK},
                pass_fds=(listening.fileno(), lifeline),
                start_new_session=True,
                preexec_fn=listen,
            )
        os.close(lifeline)

    def serves(self, environment: Mapping[str, str]) -> bool:
        """Whether it is alive, and its workers can have a given environment of mpirun's."""
        if self._process.poll() is not None:
            return False
        local, other = (
            {n: v for n, v in one.items() if n not in _OF_A_JOB} for one in (self._environment, environment)
        )
        at_start = _AT_START if _WITHOUT_KERAS in local else (*_AT_START, "KERAS_")
        return all(other.get(name) == value for name, value in local.items()) and not any(
            name.startswith(at_start) for name in other.keys() - local.keys()
        )

    def close(self) -> None:
        """Kills it and the rest of its workers."""
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # it hangs in the kernel
            self._process.wait(_PATIENCE_S)
        os.close(self._held_fd)


_waiting: list[EarlyServer] = []


def start_early_server(cluster: Cluster, without_keras: bool) -> None:
    """Starts the fork server of the next job, if that has several workers on this machine.

    Args:
        cluster: the machines of the job.
        without_keras: whether its workers will receive their graph from this process.
    """
    if not _waiting and _has_forks_here(cluster):
        worker_settings = Settings(Role.WORKER, without_keras=without_keras or None)
        _waiting.append(
            EarlyServer(Job(WORKER, cluster, (), worker_variables(worker_settings, cluster, ())), this_launcher())
        )


def _has_forks_here(cluster: Cluster) -> bool:
    """Whether workers of this machine are forked; the user's own mpirun options may set variables and cores."""
    is_here = any(host.is_this_machine and host.num_workers > 1 for host in cluster.hosts)
    return is_here and not cluster.mpirun_options


def take_early_server(job: Job, launcher: Launcher) -> EarlyServer | None:
    """Returns the fork server if the job can use it; the caller must close it."""
    if not job.forks_workers or job.program[: len(WORKER)] != WORKER or not _has_forks_here(job.cluster):
        return None
    try:
        server = _waiting.pop()
    except IndexError:
        return None
    environment = mpirun_environment(job, server.job_id, server.secret, launcher)
    if server.serves(environment):
        return server
    server.close()
    return None


def end_early_server() -> None:
    """Ends the fork server that no job has taken, if there is one."""
    while _waiting:
        _waiting.pop().close()
