"""Draws a real trial from a seed: the job, where it runs, the fault, its victim, and its time."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from random import Random

_TRAINING_SHARE = 0.3
_HOSTS_SHARE = 0.4


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault to inject into a job.

    Attributes:
        victim: `worker`, `server`, `agent`, `mpirun`, `daemon`, `launcher`, `link`, `disk`, `image` or `folder`.
        number: the signal.
        status: the job's expected exit status; None if the launcher cannot return one.
        words: pattern of the start of its message; NAME stands for the victim's name.
        how: what happens to the victim before the launcher is signalled; empty if the victim is signalled.
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
"""Message of a fault -> the fault that replaces it in jobs with checkpoints."""
OF_HOSTS = (
    Fault("daemon", signal.SIGKILL, 1, _LOST),
    Fault("daemon", signal.SIGSTOP, 1, _LOST),
    Fault("link", 0, 1, _LOST, "cut"),
)
"""Faults that need a second host."""
_ENDED = (signal.SIGINT, 130, "the launcher got SIGINT")
OF_DISKS = (Fault("disk", *_ENDED, "full"),)
"""The checkpoint disk is full for a while, which training survives; then a signal ends the job."""
OF_CHECKPOINTS = (
    Fault("image", *_ENDED, "killed"),
    Fault("image", *_ENDED, "stopped"),
    Fault("folder", *_ENDED, "second job"),
)
"""The copy of a worker that a checkpoint is written from is lost, or a second job is started in the same folder.
Training continues and writes the next checkpoint; then a signal ends the job."""


@dataclass(frozen=True, slots=True)
class Job:
    """A trial's job.

    Attributes:
        kind: `tiny`, without TensorFlow, or how the model trains: `workers`, `servers`, `asynchronous`.
        workers: number on each host; a single host is this machine.
        servers: number of servers.
        ready_s: time limit for the start of all ranks.
        moments_s: range of the fault's time, counted from the start of all ranks.
    """

    kind: str
    workers: tuple[int, ...]
    servers: int
    ready_s: float
    moments_s: tuple[float, float]

    @property
    def ranks(self) -> int:
        """Number of workers and servers."""
        return sum(self.workers) + self.servers


TINY = (Job("tiny", (3,), 0, 60.0, (2.0, 5.0)), Job("tiny", (1, 2), 0, 60.0, (2.0, 5.0)))
# The first seconds cover the start: imports, the graph, initial values.
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
    """A trial: a job, a fault, the rank of its victim if that is a rank, and its time."""

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
        """Pattern of the victim's name in messages."""
        workers = sum(self.job.workers)
        if self.rank >= workers:
            return rf"server {self.rank - workers} on host \S+"
        return rf"rank {self.rank}( on host \S+)?"

    def __str__(self) -> str:
        where = "two hosts" if self.on_hosts else "one host"
        return f"{self.fault} of rank {self.rank}, {self.job.kind} on {where}, after {self.after_s:.1f} s"


def draw_trial(random: Random, has_lab: bool) -> RandomTrial:
    """Draws a trial."""
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
        # A supervisor alone on its host cannot be distinguished from the host, so the victim has a neighbour.
        rank = max(rank, 1)
    return RandomTrial(job, fault, rank, random.uniform(*job.moments_s))
