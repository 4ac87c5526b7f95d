"""Makes the workers of a preempted job save after the same run, though only worker 0 is notified of the preemption.

Worker 0's supervisor notifies it (supervisor/control.py). Until then, a worker of synchronous training checks once
after each training run whether a message has arrived, and takes part in no collective for it.

From the run after which worker 0 was notified, it sends a verdict after each run to all others: continue, or save now.
A worker that finds a first verdict after its run m answers with m, and from then on waits after each of its runs for
the verdict about it. Worker 0 sends `save now` about its run s once every worker has answered with m <= s.

- No worker passes run s unaware: each worker had answered after a run m <= s, so after run s it waits for the verdict
  about s, and messages between two workers arrive in order.
- No worker waits for ever: the verdict about a run needs only that worker 0 ends that run, and worker 0 waits for no
  message. Workers train equally often, so when a worker waits after a run, worker 0 is in that run or past it.
- The agreement terminates: a message arrives during one of the next runs, whichever that is.

Each worker counts runs: those that all workers run together are in one order everywhere.
"""

from __future__ import annotations

from typing import NoReturn

from parallax.base.types import Comm, MpiRequest
from parallax.runtime.supervisor.control import is_preempted, send
from parallax.runtime.worker.barrier import barrier


class Preempted(BaseException):
    """The state of a preempted job is saved: the worker exits as if its script had succeeded.

    It is no SystemExit, so that no script mistakes it for its own.
    """


class Preemption:
    """One worker's state of a preemption of its job.

    Args:
        workers: communicator of the workers; every worker must create one of these at the same time.
    """

    def __init__(self, workers: Comm) -> None:
        self._comm = workers.Dup()  # its messages are separate from all others
        self._run = 0
        self._is_notified = False
        self._verdict: tuple[int, bool] | None = None  # the last one received: its run, and its content
        self._answers: dict[int, int] = {}  # rank -> run
        self._sent: list[MpiRequest] = []  # messages must stay alive until they are received

    def is_notified(self) -> bool:
        """Whether this is worker 0, and it was notified of a preemption."""
        if self._comm.Get_rank() == 0 and not self._is_notified:
            self._is_notified = is_preempted()
        return self._is_notified

    def is_now(self) -> bool:
        """Whether all workers save after the run that just ended; synchronous workers call it after each training run.

        Returns:
            The same on all workers.
        """
        self._run += 1
        if self._comm.Get_rank():
            return self._follow()
        return self.is_notified() and self._lead()

    def _lead(self) -> bool:
        """Worker 0's verdict about the run that has just ended, which it sends to all."""
        others = range(1, self._comm.Get_size())
        for rank in others:
            if rank not in self._answers and self._comm.iprobe(source=rank):
                self._answers[rank] = self._comm.recv(source=rank)
        save = all(self._answers.get(rank, self._run + 1) <= self._run for rank in others)
        self._sent += [self._comm.isend((self._run, save), rank) for rank in others]
        return save

    def _follow(self) -> bool:
        """The verdict about the run that has just ended; `go on` before there is any."""
        if self._verdict is None:
            if not self._comm.iprobe(source=0):
                return False
            self._sent.append(self._comm.isend(self._run, 0))
            self._verdict = self._comm.recv(source=0)
        while self._verdict[0] < self._run:
            self._verdict = self._comm.recv(source=0)
        about, save = self._verdict
        return save and about == self._run

    def call(self, step: int) -> None:
        """On worker 0 of asynchronous training: calls the others to save, each after its run."""
        self._sent += [self._comm.isend(step, rank) for rank in range(1, self._comm.Get_size())]

    def read_call(self) -> int | None:
        """On the other workers: the step of worker 0, if it has called."""
        if self._comm.Get_rank() and self._comm.iprobe(source=0):
            return int(self._comm.recv(source=0))
        return None

    def leave(self, step: int) -> NoReturn:
        """Reports to the launcher that the state of a step is saved, and leaves the script; every worker must call it.

        Raises:
            Preempted: always; it passes through the script, whose `finally` clauses run.
        """
        barrier(self._comm)
        if self._comm.Get_rank() == 0:
            send({"kind": "preempted", "step": step})
        raise Preempted
