"""Draws from a seed what a real trial is: which job it runs, where, which fault meets which process, and when."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from random import Random

_TRAINING_SHARE = 0.3
_HOSTS_SHARE = 0.4


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that is done to a job.

    Attributes:
        victim: `worker`, `server`, `agent`, `mpirun`, `daemon`, `launcher`, `link`, `disk`, `image` or `folder`.
        number: the signal.
        status: the job's exit status; None when the launcher cannot give one.
        words: what its message begins with, as a pattern; NAME is the victim's.
        how: what happens to the victim before the launcher gets the signal; empty where the victim gets it.
    """

    victim: str
    number: int
    status: int | None
    words: str
    how: str = ""

    def __str__(self) -> str:
        return f"{self.victim} {self.how or signal.Signals(self.number).name}"


_LOST = "host host1 is lost"


def _of_ranks(victim: str) -> tuple[Fault, ...]:
    return (
        Fault(victim, signal.SIGKILL, 137, "NAME was killed by SIGKILL"),
        Fault(victim, signal.SIGHUP, 129, "NAME was killed by SIGHUP"),
        Fault(victim, signal.SIGSEGV, 139, "NAME was killed by SIGSEGV"),
        Fault(victim, signal.SIGSTOP, 124, "NAME is silent: a signal stopped"),
    )


OF_WORKERS, OF_SERVERS = _of_ranks("worker"), _of_ranks("server")
OF_OTHERS = (
    Fault("agent", signal.SIGKILL, 137, "NAME is lost: its supervisor was killed by SIGKILL"),
    Fault("agent", signal.SIGSTOP, 124, "NAME is lost: its supervisor, process"),
    Fault("agent", signal.SIGHUP, 129, "NAME is lost: its supervisor was ended by SIGHUP"),
    Fault("agent", signal.SIGINT, 130, "NAME is lost: its supervisor was ended by SIGINT"),
    Fault("agent", signal.SIGTERM, 143, "NAME is lost: its supervisor was ended by SIGTERM"),
    Fault("mpirun", signal.SIGKILL, 137, "mpirun was killed by SIGKILL"),
    Fault("mpirun", signal.SIGSTOP, 124, "mpirun is silent: a signal stopped it"),
    Fault("launcher", signal.SIGINT, 130, "the launcher got SIGINT"),
    Fault("launcher", signal.SIGTERM, 143, "the launcher got SIGTERM"),
    Fault("launcher", signal.SIGKILL, None, ""),
    Fault("launcher", signal.SIGSTOP, None, ""),
)
OF_TRAINING = {"the launcher got SIGTERM": Fault("launcher", signal.SIGTERM, 75, r"preempted at step \d+, saved")}
"""What comes instead of the faults that say so, where there are checkpoints."""
OF_HOSTS = (
    Fault("daemon", signal.SIGKILL, 1, _LOST),
    Fault("daemon", signal.SIGSTOP, 1, _LOST),
    Fault("link", 0, 1, _LOST, "cut"),
)
"""Those that need a host besides the launcher's."""
_ENDED = (signal.SIGINT, 130, "the launcher got SIGINT")
OF_DISKS = (Fault("disk", *_ENDED, "full"),)
"""The disk with the checkpoints is full for a while, which harms no training; then the job is ended by a signal."""
OF_CHECKPOINTS = (
    Fault("image", *_ENDED, "killed"),
    Fault("image", *_ENDED, "stopped"),
    Fault("folder", *_ENDED, "second job"),
)
"""The copy of a worker that a checkpoint is written from is lost, or a second job is started in the same folder.
Training goes on and writes the next checkpoint; then the job is ended by a signal."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job of a trial.

    Attributes:
        kind: `tiny`, without TensorFlow, or how the model trains: `workers`, `servers`, `asynchronous`.
        workers: on each host; on one host, it is this machine.
        servers: how many there are of them.
        ready_s: seconds within which all ranks run.
        moments_s: the fault comes between these, after that.
    """

    kind: str
    workers: tuple[int, ...]
    servers: int
    ready_s: float
    moments_s: tuple[float, float]

    @property
    def ranks(self) -> int:
        """Workers and servers."""
        return sum(self.workers) + self.servers


TINY = (Job("tiny", (3,), 0, 60.0, (2.0, 5.0)), Job("tiny", (1, 2), 0, 60.0, (2.0, 5.0)))
# The first seconds are its start: imports, the graph, initial values.
TRAINING = (
    Job("workers", (2,), 0, 180.0, (2.0, 30.0)),
    Job("servers", (2,), 1, 180.0, (2.0, 30.0)),
    Job("asynchronous", (2,), 1, 180.0, (2.0, 30.0)),
)
TRAINING_ON_HOSTS = (
    Job("workers", (1, 2), 0, 180.0, (2.0, 30.0)),
    Job("servers", (1, 1), 2, 180.0, (2.0, 30.0)),
    Job("asynchronous", (1, 1), 2, 180.0, (2.0, 30.0)),
)


@dataclass(frozen=True, slots=True)
class RandomTrial:
    """A trial: a job, a fault, and the rank that it meets where it meets one."""

    job: Job
    fault: Fault
    rank: int
    after_s: float

    @property
    def on_hosts(self) -> bool:
        """Whether the job runs on emulated hosts."""
        return len(self.job.workers) > 1

    @property
    def name(self) -> str:
        """How messages call the victim, as a pattern."""
        workers = sum(self.job.workers)
        if self.rank >= workers:
            return rf"server {self.rank - workers} on host \S+"
        return rf"rank {self.rank}( on host \S+)?"

    def __str__(self) -> str:
        where = "two hosts" if self.on_hosts else "one host"
        return f"{self.fault} of rank {self.rank}, {self.job.kind} on {where}, after {self.after_s:.1f} s"


def draw_trial(random: Random, has_lab: bool) -> RandomTrial:
    """The trial of a seed."""
    trains, on_hosts = random.random() < _TRAINING_SHARE, random.random() < _HOSTS_SHARE and has_lab
    if trains:
        job = random.choice(TRAINING_ON_HOSTS if on_hosts else TRAINING)
    else:
        job = TINY[on_hosts]
    faults = OF_WORKERS + OF_OTHERS + (OF_HOSTS if on_hosts else ())
    faults += OF_SERVERS * bool(job.servers) + OF_DISKS * (trains and not on_hosts)
    faults += OF_CHECKPOINTS * trains
    victim = random.choice(sorted({fault.victim for fault in faults}))
    fault = random.choice([fault for fault in faults if fault.victim == victim])
    fault = OF_TRAINING.get(fault.words, fault) if trains else fault
    ranks, workers = job.ranks, sum(job.workers)
    rank = random.randrange(*{"worker": (0, workers), "server": (workers, ranks)}.get(fault.victim, (0, ranks)))
    if on_hosts and fault.victim == "agent" and fault.number == signal.SIGSTOP:
        # Alone on its host a supervisor cannot be told from the host; its neighbour tells them apart.
        rank = max(rank, 1)
    return RandomTrial(job, fault, rank, random.uniform(*job.moments_s))
