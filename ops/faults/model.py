"""A simulated job: the real state machines of supervisors and launcher, and models of everything around them.

Clock, processes, mpirun and network are models, which follow observations of real jobs. mpirun ends ranks by SIGTERM
and a second later by SIGKILL, waits for daemons that it cannot reach, and names supervisors that were killed. The
kernel signals the children of dead parents. Host 0 runs the launcher and mpirun; every other host runs a daemon. A seed
determines all random numbers of a schedule, so schedules replay.
"""

from __future__ import annotations

import heapq
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from parallax.runtime.launcher.failures import end_of_job as job_machine
from parallax.runtime.launcher.failures.first_failure import Ending
from parallax.runtime.supervisor import state_machine as rank_machine
from parallax.runtime.supervisor.frames import Control, Frame, Start
from parallax.runtime.supervisor.limits import PREEMPTION, Limits
from parallax.runtime.supervisor.processes import Vitals

LIMITS = Limits(stopped_s=3, frozen_s=5, silent_s=6, begin_s=15, start_s=12, word_s=2, unheard_s=8)
STALL_S = (5.0, 9.0)
LOOK_S = 0.5
MPIRUN_GRACE_S = 1.0
LAST_WORDS_S = 1.0
SAVE_S = 10.0  # a preempted job's grace period
END_S = 90.0  # by then every schedule has ended
RULE = "-" * 74
NEVER = float("inf")


@dataclass(eq=False, slots=True)
class Rank:
    """A rank: its supervisor, and the worker's process as seen from outside."""

    number: int
    host: int
    state: rank_machine.SupervisorState
    has_supervisor: bool = True
    supervisor_stopped: bool = False
    status: int | None = None  # of the worker, once it has ended
    stopped: bool = False
    frozen: bool = False
    beats: bool = True
    computes: bool = True
    starved: bool = False  # runnable, but gets no processor
    heeds_term: bool = True
    doing: dict[str, Any] = field(default_factory=lambda: {"runs": 3, "fetch": "", "seconds": 0.0})
    sent_s: float = 0.0


class World:
    """A job and its environment; `now_s` is the simulated time.

    Args:
        random: the schedule's random numbers.
        hosts: the host of each rank, ascending from 0.
        workers: number of ranks that are workers; the others are servers.
        watching: whether events are recorded in `trace`.
        saves: whether the workers write checkpoints.
    """

    def __init__(
        self, random: Random, hosts: tuple[int, ...], workers: int, watching: bool = False, saves: bool = False
    ) -> None:
        self.random = random
        self.now_s = 0.0
        self.trace: list[str] = []
        self._watching = watching
        self._heap: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._number = 0
        self.stall_s = random.uniform(*STALL_S)
        names = tuple(f"rank {rank}" for rank in range(len(hosts)))
        by_rank = tuple(f"h{host}" for host in hosts)
        self.job = job_machine.new_job(names, by_rank, workers, self.stall_s, LIMITS, 0.0, SAVE_S if saves else None)
        self.saving: Callable[[], None] = lambda: None  # called when worker 0 is notified of a preemption
        self.ranks = [Rank(n, host, rank_machine.SupervisorState(n, 0.0, LIMITS)) for n, host in enumerate(hosts)]
        self.launcher = self.mpirun = "up"
        self.held_until_s = 0.0  # until then the launcher blocks on unread output
        self.daemons = {host: "up" for host in hosts if host}
        self.cut: set[int] = set()
        self.ending: Ending | None = None
        self.ended_s = NEVER
        self._inbox: list[Frame | str] = []
        self._mpirun_ends = False
        self._mpirun_status = 0
        self._mpirun_done_s = NEVER

    def at(self, time_s: float, what: Callable[..., object], *arguments: Any) -> None:
        """Schedules a call."""
        self._number += 1
        heapq.heappush(self._heap, (time_s, self._number, what, arguments))

    def soon(self, what: Callable[..., object], *arguments: Any) -> None:
        """Schedules a call after a short random delay."""
        self.at(self.now_s + 0.01 + 0.04 * self.random.random(), what, *arguments)

    def run(self) -> None:
        """Runs the job until no process of it is left, or for `END_S`."""
        for rank in self.ranks:
            self.at(0.2 * self.random.random(), self._start, rank)
        self.at(LOOK_S, self._look)
        self.at(2 * LOOK_S, self._word)
        while self._heap and self.now_s < END_S and not self.is_over():
            self.now_s, _, what, arguments = heapq.heappop(self._heap)
            what(*arguments)

    def is_over(self) -> bool:
        """Returns whether no process is left."""
        return self.launcher in ("ended", "dead") and not self.left()

    def left(self) -> list[str]:
        """Returns the remaining processes of the job, without the launcher."""
        found = [f"worker {rank.number}" for rank in self.ranks if rank.status is None]
        found += [f"supervisor {rank.number}" for rank in self.ranks if rank.has_supervisor]
        found += [f"daemon {host}" for host, state in self.daemons.items() if state != "dead"]
        return found if self.mpirun == "dead" else [*found, "mpirun"]

    def note(self, text: str) -> None:
        """Records an event."""
        if self._watching:
            self.trace.append(f"{self.now_s:7.3f} {text}")

    # --- ranks ---

    def _start(self, rank: Rank) -> None:
        if rank.has_supervisor:
            self._send(rank, Start(rank.number, 100 + rank.number, 200 + rank.number, f"h{rank.host}"))
            self._beat(rank)
            self._sample(rank)

    def _beat(self, rank: Rank) -> None:
        if rank.status is not None or self.now_s >= END_S:
            return
        if rank.beats and not rank.stopped and not rank.frozen and not rank.supervisor_stopped and not rank.starved:
            self._step(rank, rank_machine.HeartbeatReceived(rank.doing))
            if rank.doing["fetch"]:
                rank.doing = {**rank.doing, "seconds": rank.doing["seconds"] + LIMITS.beat_s}
                if rank.doing["seconds"] >= 2:
                    self._send(rank, Control(rank.number, {"kind": "in_run", **rank.doing}))
        self.at(self.now_s + LIMITS.beat_s, self._beat, rank)

    def _sample(self, rank: Rank) -> None:
        if not rank.has_supervisor:
            return
        if not rank.supervisor_stopped and rank.status is None:
            letter = "T" if rank.stopped else "R" if rank.starved else "S"
            grows = rank.computes and not (rank.frozen or rank.stopped or rank.starved)
            self._step(rank, rank_machine.VitalsSampled(Vitals(letter, int(10 * self.now_s) if grows else 7)))
        self.at(self.now_s + LIMITS.beat_s, self._sample, rank)

    def enter_run(
        self, rank: Rank, fetch: str = "train", collectives: str = "d", failures: tuple[str, ...] = ()
    ) -> None:
        """Lets a worker begin a long run."""
        rank.doing = {"runs": 3, "fetch": fetch, "seconds": 0.0, "collectives": collectives, "failures": failures}

    def tell(self, rank: Rank, message: dict[str, Any]) -> None:
        """Sends a message from a worker to the launcher."""
        if rank.status is None and not rank.stopped and not rank.frozen and not rank.supervisor_stopped:
            self._send(rank, Control(rank.number, message))

    def end_worker(self, rank: Rank, status: int) -> None:
        """Ends a worker."""
        if rank.status is None:
            self.note(f"worker {rank.number} ends with {status}")
            rank.status = status
            self.soon(self._worker_ended, rank)

    def _worker_ended(self, rank: Rank) -> None:
        if rank.has_supervisor and not rank.supervisor_stopped:
            self._step(rank, rank_machine.WorkerEnded(rank.status or 0))

    def signal_supervisor(self, rank: Rank, number: int) -> None:
        """Sends a supervisor a signal."""
        if not rank.has_supervisor:
            return
        if number == signal.SIGKILL:
            self._supervisor_gone(rank)
            self.end_worker(rank, -number)
            if self.mpirun == "up" and not self._mpirun_ends and self._reaches(rank):
                words = (
                    f"mpirun noticed that process rank {rank.number} with PID 0 on node h{rank.host} exited on signal 9"
                )
                self._inbox += [RULE, words, RULE]
                self._end_all(137)
        elif not rank.supervisor_stopped:
            self._step(rank, rank_machine.SignalReceived(number))

    def _supervisor_gone(self, rank: Rank) -> None:
        rank.has_supervisor = False
        self.note(f"supervisor {rank.number} is gone")
        self.at(self.now_s + 0.1, self._check_mpirun)  # mpirun first forwards the rank's output

    def _step(self, rank: Rank, event: rank_machine.SupervisorEvent) -> None:
        kill_s = rank.state.kill_s
        rank.state, actions = rank_machine.step(rank.state, event, self.now_s)
        if rank.state.kill_s != kill_s and rank.state.kill_s != NEVER:
            self.at(rank.state.kill_s, self._time_passes, rank)
        for action in actions:
            if isinstance(action, rank_machine.Tell):
                self._send(rank, action.frame)
            elif isinstance(action, rank_machine.SignalWorker):
                self._signal_worker(rank, action.number)
            elif isinstance(action, rank_machine.TellPreemption):
                if rank.number == 0 and rank.status is None:
                    self.note("worker 0 is notified of a preemption")
                    self.saving()
            else:
                self._leave(rank, action)

    def _time_passes(self, rank: Rank) -> None:
        if rank.has_supervisor and not rank.supervisor_stopped:
            self._step(rank, rank_machine.TimePassed())

    def _signal_worker(self, rank: Rank, number: int) -> None:
        self.note(f"worker {rank.number} receives signal {number}")
        if number == signal.SIGKILL or (rank.heeds_term and not rank.stopped and not rank.frozen):
            self.end_worker(rank, -number)

    def _leave(self, rank: Rank, leave: rank_machine.Leave) -> None:
        if leave.orphaned:
            self._supervisor_gone(rank)
            if rank.host:
                self.kill_daemon(rank.host)
            else:
                self.kill_mpirun()
        elif leave.status and not rank.state.is_end_requested:
            self.at(self.now_s + 1.0, self._exits, rank, leave.status)  # it lingers
        else:
            self._exits(rank, leave.status)

    def _exits(self, rank: Rank, status: int) -> None:
        if not rank.has_supervisor:
            return
        self._supervisor_gone(rank)
        if status and self.mpirun == "up" and not self._mpirun_ends and self._reaches(rank):
            words = ("mpirun detected that one or more processes exited", f"Process name: [[1,1],{rank.number}]")
            self._inbox += [RULE, *words, RULE]
            self._end_all(status)

    # --- mpirun and the network ---

    def _reaches(self, rank: Rank) -> bool:
        return not rank.host or (self.daemons[rank.host] == "up" and rank.host not in self.cut)

    def _send(self, rank: Rank, frame: Frame) -> None:
        """Sends a frame to the launcher with a random delay; the frames of one rank stay in order."""
        if rank.host and self.daemons[rank.host] == "dead" or not rank.host and self.mpirun == "dead":
            if not rank.state.orphaned:
                self._step(rank, rank_machine.ReaderGone())
        elif self._reaches(rank):
            rank.sent_s = max(self.now_s + 0.05 * self.random.random() ** 2, rank.sent_s)
            self.at(rank.sent_s, self._arrive, rank, frame)

    def _arrive(self, rank: Rank, frame: Frame) -> None:
        if self.mpirun == "up" and self._reaches(rank):
            self._inbox.append(frame)

    def _word(self) -> None:
        has_started = self.job.alive.first_s is not None or bool(self._inbox)
        if self.launcher == "up" and has_started:
            self._pass_on(rank_machine.KeepaliveReceived())
        if self.now_s < END_S:
            self.at(self.now_s + LIMITS.word_s, self._word)

    def _pass_on(self, word: rank_machine.SupervisorEvent) -> None:
        """Sends the launcher's message to all supervisors that mpirun reaches."""
        for rank in self.ranks:
            if self.mpirun == "up" and self._reaches(rank):
                self.soon(self._hears, rank, word)

    def _hears(self, rank: Rank, word: rank_machine.SupervisorEvent) -> None:
        if rank.has_supervisor and not rank.supervisor_stopped and self._reaches(rank):
            self._step(rank, word)

    def signal_mpirun(self, number: int) -> None:
        """Sends mpirun a signal."""
        self.note(f"mpirun receives signal {number}")
        if number == signal.SIGKILL:
            self.kill_mpirun()
        elif number == PREEMPTION:
            self._pass_on(rank_machine.PreemptionReceived())
        elif self.mpirun == "up" and not self._mpirun_ends:
            self._end_all(1)

    def _end_all(self, status: int) -> None:
        self._mpirun_ends, self._mpirun_status = True, status
        for rank in self.ranks:
            if self._reaches(rank):
                self._end_rank(rank)
        for host, daemon in self.daemons.items():
            if daemon == "up" and host not in self.cut:
                self.at(self.now_s + MPIRUN_GRACE_S + 0.1, self._daemon_ends, host)
        self.at(self.now_s + MPIRUN_GRACE_S + 0.2, self._check_mpirun)

    def _end_rank(self, rank: Rank) -> None:
        self.soon(self.signal_supervisor, rank, signal.SIGTERM)
        self.at(self.now_s + MPIRUN_GRACE_S, self._kill_supervisor, rank)

    def _kill_supervisor(self, rank: Rank) -> None:
        if rank.has_supervisor:
            self._supervisor_gone(rank)
            self.end_worker(rank, -signal.SIGKILL)

    def _daemon_ends(self, host: int) -> None:
        if self.daemons[host] == "up":
            self.daemons[host] = "dead"
            for rank in self.ranks:
                if rank.host == host:
                    self._kill_supervisor(rank)
            self.soon(self._check_mpirun)

    def _check_mpirun(self) -> None:
        """Ends mpirun if all processes that it has started have ended."""
        if self.mpirun != "up" or any(rank.has_supervisor and self._reaches(rank) for rank in self.ranks):
            return
        if any(host in self.cut or daemon == "stopped" for host, daemon in self.daemons.items()):
            return  # mpirun waits for the daemon's message
        on_its_way_s = max(rank.sent_s for rank in self.ranks)
        if self.now_s <= on_its_way_s:  # mpirun first forwards the ranks' output
            self.at(on_its_way_s + 0.01, self._check_mpirun)
            return
        self.daemons = dict.fromkeys(self.daemons, "dead")
        self._gone(self._mpirun_status)

    def _gone(self, status: int) -> None:
        if self.mpirun != "dead":
            self.mpirun, self._mpirun_status, self._mpirun_done_s = "dead", status, self.now_s

    def kill_mpirun(self) -> None:
        """Kills mpirun."""
        if self.mpirun == "dead":
            return
        self.note("mpirun is killed")
        self._gone(-signal.SIGKILL)
        for rank in self.ranks:
            if not rank.host:
                self.soon(self.signal_supervisor, rank, signal.SIGTERM)
        for host in self.daemons:
            if self.daemons[host] == "up" and host not in self.cut:
                self.at(self.now_s + 0.1, self._daemon_ends, host)

    def kill_daemon(self, host: int) -> None:
        """Kills mpirun's daemon on a host."""
        if self.daemons[host] == "dead":
            return
        self.note(f"daemon {host} is killed")
        self.daemons[host] = "dead"
        for rank in self.ranks:
            if rank.host == host:
                self.soon(self.signal_supervisor, rank, signal.SIGTERM)
        if self.mpirun == "up" and host not in self.cut and not self._mpirun_ends:
            self._inbox += ["ORTE has lost communication with a remote daemon.", f"  Remote daemon: x on node h{host}"]
            self._end_all(1)

    # --- the launcher ---

    def take(self, event: job_machine.JobEvent) -> None:
        """Passes an event to the launcher."""
        if self.launcher == "up":
            self.job, actions = job_machine.step(self.job, event, self.now_s)
            for action in actions:
                self.signal_mpirun(action.number)

    def _look(self) -> None:
        if self.launcher in ("ended", "dead"):
            return
        self.at(self.now_s + LOOK_S, self._look)
        if self.launcher == "stopped" or self.now_s < self.held_until_s:
            return
        was_held, self.held_until_s = self.held_until_s > 0.0, 0.0
        came, self._inbox = ([], self._inbox) if was_held else (self._inbox, [])
        for one in came:
            if isinstance(one, str):
                self.job = job_machine.process_line(self.job, one)[0]
            else:
                self.take(job_machine.FrameReceived(one))
        stopped = tuple(r.number for r in self.ranks if r.supervisor_stopped and r.has_supervisor and not r.host)
        if self.now_s % LIMITS.beat_s == 0:
            self.take(job_machine.StopsSampled(stopped, self.mpirun == "stopped"))
        self.take(job_machine.FramesDrained())
        if self.now_s >= self._mpirun_done_s + LAST_WORDS_S:
            self.ending = self.job.conclude(self._mpirun_status, lambda rank: [])
            self.launcher, self.ended_s = "ended", self.now_s
            for rank in self.ranks:
                if not rank.host:  # the launcher kills the remaining processes of its own host
                    self._kill_supervisor(rank)
                    self.end_worker(rank, -signal.SIGKILL)

    def kill_launcher(self) -> None:
        """Kills the launcher; the kernel signals mpirun."""
        self.launcher = "dead"
        self.signal_mpirun(signal.SIGTERM)
