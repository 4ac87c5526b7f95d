"""The faults injected into simulated jobs, and the expected end of the job for each.

A seed determines a schedule: the hosts and ranks, the fault, its time, and the delays of messages.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from ops.faults.model import LIMITS, SAVE_S, World
from parallax.report.text import name_ranks
from parallax.runtime.supervisor.state_machine import ReaderGone, SignalReceived

_END_S = 10.0  # to end a job: grace periods of mpirun and a supervisor, and polling


@dataclass(frozen=True, slots=True)
class Expected:
    """The expected end of a job.

    Attributes:
        status: exit status of the launcher; None if the launcher does not survive to return one.
        words: start of the message; empty for no message.
        has: text within the message.
        within_s: time limit from the fault to the launcher's end.
        empty_s: time limit from the fault until no process is left.
    """

    status: int | None
    words: str
    within_s: float
    empty_s: float
    has: str = ""


Fault = Callable[[World], Expected]


def _ends(status: int | None, words: str, limit_s: float = 0.0, left_s: float = 0.0, has: str = "") -> Expected:
    return Expected(status, words, limit_s + _END_S, max(limit_s, left_s) + _END_S, has)


def _others_wait(world: World, rank: int) -> None:
    for other in world.ranks:
        if other.number != rank and other.number < len(world.job.stalls.states):
            world.enter_run(other)


def _pick(world: World) -> int:
    return world.random.randrange(len(world.ranks))


def _follow(world: World, rank: int, least_s: float) -> None:
    """Lets another rank fail as a consequence, or not, at random."""
    others = [one for one in world.ranks if one.number != rank]
    if others and world.random.random() < 0.5:
        other = world.random.choice(others)
        at_s = world.now_s + least_s + 2 * world.random.random() ** 4
        message = {"kind": "failed", "error": "lost connection", "what": "lost"}
        world.at(at_s, world.tell, other, message)
        world.at(at_s + 0.2, world.end_worker, other, 1)


# --- faults ---


def ends_well(world: World) -> Expected:
    """Injects nothing: all ranks finish."""
    for rank in world.ranks:
        world.tell(rank, {"kind": "finished", "runs": 3})
        world.at(world.now_s + 12 * world.random.random(), world.end_worker, rank, 0)
    return _ends(0, "", 12)


def is_slow(world: World) -> Expected:
    """Lets a rank compute for long with only one sign of life, while the others wait in the same run."""
    slow = world.ranks[_pick(world)]
    sign = world.random.choice(("beat", "ticks", "runnable"))
    slow.beats, slow.computes, slow.starved = sign == "beat", sign == "ticks", sign == "runnable"
    for rank in world.ranks:
        world.enter_run(rank)
    # Without heartbeats a worker cannot report that it is in the common run, and counts as absent from it.
    seconds = 20 + 10 * world.random.random() if sign == "beat" else world.stall_s - 2
    for rank in world.ranks:
        world.at(world.now_s + seconds, world.end_worker, rank, 0)
    return _ends(0, "", seconds)


def hangs_at_its_start(world: World) -> Expected:
    """Hangs all threads of a process before its first heartbeat; `world_of` has set this up."""
    _others_wait(world, rank := next(rank.number for rank in world.ranks if rank.frozen))
    return _ends(124, f"rank {rank} is silent: its process 20{rank} has given no sign", LIMITS.frozen_s + 1)


def cut_from_the_start(world: World) -> Expected:
    """Cuts a host's link before its ranks report their start; `world_of` has set this up."""
    if not world.cut:
        return is_stopped(world)
    gone = [rank.number for rank in world.ranks if rank.host in world.cut]
    left_s = LIMITS.unheard_s + 1
    if len(gone) == len(world.ranks):
        return _ends(124, "no rank has started for 15 s", LIMITS.begin_s, left_s)
    _others_wait(world, gone[0])
    return _ends(124, f"{name_ranks(gone)} on h{max(world.cut)} did not start within 12 s", LIMITS.start_s, left_s)


def is_held_up(world: World) -> Expected:
    """Leaves the launcher's output unread for long, and then reads it."""
    world.held_until_s = world.now_s + 25
    world.at(world.held_until_s + 2, ends_well, world)
    return _ends(0, "", 39)


def pauses(world: World) -> Expected:
    """Stops a worker repeatedly, and continues it in time."""
    rank = world.ranks[_pick(world)]

    def stop() -> None:
        rank.stopped = True
        world.at(world.now_s + (LIMITS.stopped_s - 1.1) * world.random.random(), go_on)

    def go_on() -> None:
        rank.stopped = False

    for number in range(4):
        world.at(world.now_s + 4 * number, stop)
    world.at(world.now_s + 20, ends_well, world)
    return _ends(0, "", 32)


def exits(world: World) -> Expected:
    """Ends a worker with a nonzero exit status."""
    rank = _pick(world)
    _others_wait(world, rank)
    world.end_worker(world.ranks[rank], 3)
    _follow(world, rank, 0.3)
    return _ends(3, f"rank {rank} failed with exit status 3")


def raises(world: World) -> Expected:
    """Lets a worker report an exception, and end a while later or never."""
    rank = _pick(world)
    _others_wait(world, rank)
    world.tell(world.ranks[rank], {"kind": "failed", "error": "Traceback (most recent call last):\nKeyError: 3"})
    stays = world.random.random() < 0.3
    if not stays:
        world.at(world.now_s + 0.5 * world.random.random(), world.end_worker, world.ranks[rank], 5)
    _follow(world, rank, 0.5)
    return _ends(1 if stays else 5, f"rank {rank} failed", 5.0)


def is_killed(world: World) -> Expected:
    """Kills a worker; others may report their broken connections first."""
    rank = _pick(world)
    _others_wait(world, rank)
    world.end_worker(world.ranks[rank], -signal.SIGKILL)
    _follow(world, rank, 0.0)
    return _ends(137, f"rank {rank} was killed by SIGKILL")


def gets_hup(world: World) -> Expected:
    """Ends a worker by SIGHUP."""
    rank = _pick(world)
    world.end_worker(world.ranks[rank], -signal.SIGHUP)
    return _ends(129, f"rank {rank} was killed by SIGHUP")


def is_stopped(world: World) -> Expected:
    """Stops a worker or server by a signal, in the common run or elsewhere."""
    rank = _pick(world)
    in_s = 0.0
    if world.random.random() < 0.7:
        comes = world.random.random() < 0.5
        _others_wait(world, -1 if comes else rank)
        in_s = 4.0 * comes  # late enough that the workers have reported the common run

    def stop() -> None:
        world.ranks[rank].stopped = True

    world.at(world.now_s + in_s, stop)
    did = f"last heard of rank {rank}: 3 runs made"
    return _ends(124, f"rank {rank} is silent: a signal stopped its process", in_s + LIMITS.stopped_s, has=did)


def freezes(world: World) -> Expected:
    """Hangs all threads of a process."""
    rank = _pick(world)
    _others_wait(world, -1)
    world.ranks[rank].frozen = True
    return _ends(124, f"rank {rank} is silent: its process 20{rank} has given no sign", LIMITS.frozen_s + 1)


def supervisor_killed(world: World) -> Expected:
    """Kills a supervisor."""
    rank = _pick(world)
    _others_wait(world, rank)
    world.signal_supervisor(world.ranks[rank], signal.SIGKILL)
    return _ends(137, f"rank {rank} is lost: its supervisor was killed by SIGKILL")


def supervisor_stopped(world: World) -> Expected:
    """Stops a supervisor; one that is alone on its host cannot be distinguished from the host."""
    return _stop_supervisor(world, 0.0)


def supervisor_stopped_after_a_hold(world: World) -> Expected:
    """Leaves the launcher's output unread for long, then reads it and stops a supervisor."""
    world.held_until_s = world.now_s + 12
    return _stop_supervisor(world, 14.0)


def _stop_supervisor(world: World, in_s: float) -> Expected:
    rank = world.ranks[_pick(world)]

    def stop() -> None:
        _others_wait(world, rank.number)
        rank.supervisor_stopped = True

    world.at(world.now_s + in_s, stop)
    limit_s = in_s + LIMITS.silent_s
    alone = sum(one.host == rank.host for one in world.ranks) == 1 and rank.host
    if len(world.ranks) == 1 or not alone:
        return _ends(124, f"rank {rank.number} is lost: its supervisor, process 10{rank.number}", limit_s)
    return _ends(1, f"host h{rank.host} is lost: nothing has arrived", limit_s)


def supervisor_signalled(world: World) -> Expected:
    """Sends a supervisor a signal that requests its end."""
    rank, number = _pick(world), world.random.choice((signal.SIGHUP, signal.SIGINT, signal.SIGTERM))
    world.ranks[rank].heeds_term = world.random.random() < 0.5
    world.signal_supervisor(world.ranks[rank], number)
    return _ends(128 + number, f"rank {rank} is lost: its supervisor was ended by {signal.Signals(number).name}")


def daemon_killed(world: World) -> Expected:
    """Kills mpirun's daemon on a host."""
    if not world.daemons:
        return is_killed(world)
    host = world.random.choice(list(world.daemons))
    world.kill_daemon(host)
    return _ends(1, f"host h{host} is lost: it is down")


def host_silent(world: World) -> Expected:
    """Cuts a host's link or stops its daemon: no message arrives from the host or reaches it."""
    if not world.daemons:
        return is_stopped(world)
    host = world.random.choice(list(world.daemons))
    cut = world.random.random() < 0.5
    if cut:
        world.cut.add(host)
    else:
        world.daemons[host] = "stopped"
    gone = [rank.number for rank in world.ranks if rank.host == host]
    _others_wait(world, gone[0])
    left_s = LIMITS.unheard_s + 1
    if len(gone) == len(world.ranks):
        return _ends(124, "mpirun is silent: nothing has arrived from any rank", LIMITS.silent_s, left_s)
    _follow(world, gone[0], LIMITS.late_s + 1.5)
    return _ends(1, f"host h{host} is lost: nothing has arrived", LIMITS.silent_s + LIMITS.late_s, left_s)


def mpirun_killed(world: World) -> Expected:
    """Kills mpirun."""
    world.kill_mpirun()
    return _ends(137, "mpirun was killed by SIGKILL")


def mpirun_stopped(world: World) -> Expected:
    """Stops mpirun by a signal."""
    _others_wait(world, -1)
    world.mpirun = "stopped"
    return _ends(124, "mpirun is silent: a signal stopped it", LIMITS.stopped_s)


def launcher_signalled(world: World) -> Expected:
    """Sends the launcher SIGINT or SIGTERM, once or twice."""
    number = world.random.choice((signal.SIGINT, signal.SIGTERM))
    for rank in world.ranks:
        rank.heeds_term = world.random.random() < 0.5
    for _ in range(world.random.choice((1, 2))):
        world.take(SignalReceived(number))
    return _ends(128 + number, f"the launcher got {signal.Signals(number).name}")


def _saves(world: World, in_s: float) -> None:
    """Lets all workers save and end, a while after worker 0 is notified; servers end with them."""

    def saved() -> None:
        world.tell(world.ranks[0], {"kind": "preempted", "step": 3})
        for rank in world.ranks:
            world.tell(rank, {"kind": "finished", "runs": 3})
            world.at(world.now_s + world.random.random(), world.end_worker, rank, 0)

    world.saving = lambda: world.at(world.now_s + in_s, saved)


def is_preempted(world: World) -> Expected:
    """Sends the launcher SIGTERM; the workers save in time."""
    in_s = (SAVE_S - 4) * world.random.random()
    _saves(world, in_s)
    world.take(SignalReceived(signal.SIGTERM))
    return _ends(75, "preempted at step 3, saved", in_s)


def is_preempted_and_stays(world: World) -> Expected:
    """Preempts a job whose workers save, but whose scripts do not end."""
    world.saving = lambda: world.tell(world.ranks[0], {"kind": "preempted", "step": 3})
    world.take(SignalReceived(signal.SIGTERM))
    return _ends(75, "preempted at step 3, saved", SAVE_S)


def is_preempted_in_vain(world: World) -> Expected:
    """Preempts a job whose workers never save."""
    world.take(SignalReceived(signal.SIGTERM))
    return _ends(143, "the launcher got SIGTERM, and the workers have not saved within 10 s", SAVE_S)


def is_preempted_twice(world: World) -> Expected:
    """Sends another signal before the workers of a preempted job have saved."""
    in_s = 4 * world.random.random()
    world.take(SignalReceived(signal.SIGTERM))
    world.at(world.now_s + in_s, world.take, SignalReceived(world.random.choice((signal.SIGINT, signal.SIGTERM))))
    return _ends(143, "the launcher got SIGTERM. The job was ended.", in_s)


def is_killed_while_preempted(world: World) -> Expected:
    """Kills a worker while the others save."""
    rank = _pick(world)
    world.take(SignalReceived(signal.SIGTERM))
    in_s = 0.5 + 5 * world.random.random()
    world.at(world.now_s + in_s, world.end_worker, world.ranks[rank], -signal.SIGKILL)
    return _ends(137, f"rank {rank} was killed by SIGKILL", in_s)


def launcher_unread(world: World) -> Expected:
    """Closes the reader of the launcher's output."""
    world.take(ReaderGone())
    return _ends(141, "")


def launcher_killed(world: World) -> Expected:
    """Kills the launcher."""
    world.kill_launcher()
    return _ends(None, "", 0.0, LIMITS.unheard_s)


def launcher_stopped(world: World) -> Expected:
    """Stops the launcher for good."""
    for rank in world.ranks:
        rank.heeds_term = world.random.random() < 0.5
    world.launcher = "stopped"

    def ended() -> None:
        world.launcher = "dead"

    world.at(world.now_s + LIMITS.unheard_s + _END_S - 1, ended)
    return _ends(None, "", 0.0, LIMITS.unheard_s + LIMITS.word_s)


def ends_early(world: World) -> Expected:
    """Lets a worker end its loop before the others."""
    rank = _pick_worker(world)
    world.tell(world.ranks[rank], {"kind": "finished", "runs": 3})
    _others_wait(world, rank)
    return _ends(124, "the job stalled", world.stall_s + 2, has=f"rank {rank}: ended its loop after 3 runs")


def fetches_otherwise(world: World) -> Expected:
    """Puts a worker into another fetch."""
    rank = _pick_worker(world)
    _others_wait(world, rank)
    world.enter_run(world.ranks[rank], "loss", "other")
    return _ends(124, "the job stalled", world.stall_s + 2, has="waits in another fetch")


def is_a_run_apart(world: World) -> Expected:
    """Lets a worker catch a failed run and begin the next."""
    rank = _pick_worker(world)
    _others_wait(world, rank)
    world.enter_run(world.ranks[rank], failures=("run 3: x",))
    return _ends(124, "the job stalled", world.stall_s + 2, has=" is a run ")


def _pick_worker(world: World) -> int:
    return world.random.randrange(len(world.job.stalls.states))


FAULTS: tuple[Fault, ...] = (
    *(
        ends_well,
        is_slow,
        hangs_at_its_start,
        is_held_up,
        pauses,
        exits,
        raises,
        is_killed,
        gets_hup,
        is_stopped,
        freezes,
    ),
    *(supervisor_killed, supervisor_stopped, supervisor_signalled, daemon_killed, host_silent),
    *(mpirun_killed, mpirun_stopped, launcher_signalled, launcher_unread, launcher_killed, launcher_stopped),
    *(ends_early, fetches_otherwise, is_a_run_apart, cut_from_the_start, supervisor_stopped_after_a_hold),
)
SAVING = (is_preempted, is_preempted_and_stays, is_preempted_in_vain, is_preempted_twice, is_killed_while_preempted)
"""Further faults of jobs that write checkpoints, injected in place of a signal to the launcher."""
ALONE = (ends_early, fetches_otherwise, is_a_run_apart)
"""Faults that need two workers."""
_SHAPES = ((0,), (0, 0), (0, 0), (0, 1), (0, 1), (0, 0, 1), (0, 1, 1), (0, 1, 2), (1, 2), (1, 1))


def world_of(seed: int, watching: bool = False) -> tuple[World, Fault]:
    """Returns the job of a seed, and the fault to inject into it."""
    random = Random(seed)
    hosts = random.choice(_SHAPES)
    workers = max(1, len(hosts) - (random.random() < 0.3))
    fault = random.choice(FAULTS)
    if fault is launcher_signalled:
        fault = random.choice((fault, *SAVING))
    if fault in ALONE and workers < 2:
        hosts, workers = (0, 1), 2
    world = World(random, hosts, workers, watching, fault in SAVING)
    if fault is hangs_at_its_start:
        random.choice(world.ranks).frozen = True
    if fault is cut_from_the_start and world.daemons:
        world.cut.add(random.choice(list(world.daemons)))
    return world, fault
