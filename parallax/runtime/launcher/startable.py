"""Refuses, before anything is started, a job that this machine cannot start."""

from __future__ import annotations

import re
import resource

from parallax.base.errors import LaunchError
from parallax.cluster.machines import Cluster
from parallax.runtime.launcher.job import Job
from parallax.runtime.launcher.mpirun import Launcher, may_use_ssh
from parallax.runtime.launcher.open_mpi import MCA, PASSED_ON, parameters_of
from parallax.runtime.supervisor import preload
from parallax.runtime.supervisor.limits import WORD

# Files that mpirun opens, with a reserve: 24, three for each rank on this machine, and three for each ssh.
_OWN_FILES, _RANK_FILES, _HOST_FILES, _USUAL_FILES = 36, 4, 4, 1024
# The agent that reaches daemons over ssh, with the old names of the parameter, and the program that starts them there.
_REACHES = ("plm_rsh_agent", "pls_rsh_agent", "orte_rsh_agent")
_STARTS = ("orte_launch_agent", "--launch-agent", "-launch-agent")
_PLAIN_PATH = re.compile(r"[\w@%+=,./-]+")  # one word to mpirun, to the loader and to a shell


def check_startable(job: Job, launcher: Launcher) -> None:
    """Refuses, before anything is started, a job that this machine cannot start.

    Raises:
        LaunchError: says what is missing.
    """
    _check_word(job.cluster, launcher)
    _check_descriptors(job)
    if launcher.has_library:
        _check_paths(job.cluster, launcher)
        _check_launch_agents(job.cluster)
    if job.servers and not launcher.has_library:
        raise LaunchError(
            f"Servers admit only processes of their job, for which they need {launcher.preload_library}, which does "
            "not exist. Build it: `parallax setup`, or cc -shared -fPIC -o that file parallax/native/preload/*.c -ldl."
        )


def _check_word(cluster: Cluster, launcher: Launcher) -> None:
    """Refuses mpirun settings that keep the keepalive signal from supervisors: they would think the launcher dead."""
    parameters = parameters_of(cluster.mpirun_options)
    old = MCA + PASSED_ON[1]  # Open MPI takes the variable before the option
    for name, value in (*((name, parameters.get(name)) for name in PASSED_ON), (old, launcher.variables.get(old))):
        if value == "none":
            raise LaunchError(
                f"mpirun must forward {WORD.name} to ranks, by which they know that the launcher is alive, but "
                f"{name} is 'none'. Leave it out, or name additional signals to forward."
            )


def _check_descriptors(job: Job) -> None:
    """Refuses a limit of open files at which mpirun itself could not start all ranks; it would hang."""
    hosts = job.cluster.hosts
    here = sum(host.num_workers for host in hosts if host.is_this_machine)
    here += sum(hosts[number].is_this_machine for number in job.servers)
    needed = _OWN_FILES + _RANK_FILES * here + _HOST_FILES * len(job.cluster.hosts)
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if 0 <= allowed < needed:
        raise LaunchError(
            f"mpirun opens up to {needed} files at once for this job, but this process may open only {allowed}. Raise "
            f"the limit first: ulimit -n {max(_USUAL_FILES, needed)}"
        )


def _check_paths(cluster: Cluster, launcher: Launcher) -> None:
    """Refuses paths that the loader, mpirun or a shell would split, so that a process would start without the fence."""
    started = () if cluster.is_local else (launcher.python, preload.__file__)
    for path in (launcher.preload_library, *started):
        if not _PLAIN_PATH.fullmatch(path):
            raise LaunchError(
                "Paths of programs that start the processes of a job may contain only letters, digits and @%+=,./-_, "
                f"no blank or colon, got {path!r}. Install Parallax and its environment in another folder."
            )


def _check_launch_agents(cluster: Cluster) -> None:
    """Refuses agents that start daemons over ssh in another way than the one that passes them the secret."""
    if cluster.is_local or not may_use_ssh(cluster):
        return
    options = set(cluster.mpirun_options)
    for name in _REACHES:
        if name in options:
            raise LaunchError(
                "Parallax passes the job's secret to the command that reaches the hosts, so nothing else may set "
                f"{name}. Name the command as `ssh: {{agent: ...}}` in the resource file."
            )
    for name in _STARTS:
        if name in options:
            raise LaunchError(
                "Parallax itself sets what starts mpirun's daemons, to pass them the job's secret, so "
                f"`mpirun_options` must not contain {name}. Leave it out."
            )
