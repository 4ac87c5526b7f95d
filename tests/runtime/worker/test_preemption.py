"""The workers' agreement on a run after which all save, whatever way messages take; workers here are threads."""

import queue
import threading
from random import Random

import pytest

from parallax.runtime.worker import preemption
from parallax.runtime.worker.preemption import Preempted, Preemption

RUNS = 60
LIMIT_S = 20.0


class Net:
    """Messages between ranks: in order between two, and seen by `iprobe` only some looks after they were sent."""

    def __init__(self, size, random):
        self.size, self._random = size, random
        self._boxes = {(a, b): queue.Queue() for a in range(size) for b in range(size)}
        self._looks = dict.fromkeys(self._boxes, 0)

    def put(self, message, pair):
        self._looks[pair] = self._random.choice((0, 0, 1, 2, 5))
        self._boxes[pair].put(message)

    def sees(self, pair):
        self._looks[pair] -= 1
        return self._looks[pair] < 0 and not self._boxes[pair].empty()

    def take(self, pair):
        return self._boxes[pair].get(timeout=LIMIT_S)


class Comm:
    """What a worker's agreement uses of mpi4py."""

    def __init__(self, net, rank):
        self._net, self._rank = net, rank

    def Dup(self):
        return self

    def Get_rank(self):
        return self._rank

    def Get_size(self):
        return self._net.size

    def isend(self, message, rank):
        self._net.put(message, (self._rank, rank))

    def iprobe(self, source):
        return self._net.sees((source, self._rank))

    def recv(self, source):
        return self._net.take((source, self._rank))


def stops(size, told_after, seed, monkeypatch, loose=False):
    """After which run each worker saves, when worker 0 hears after a run; None for a worker that never does."""
    runs_of_0, found = [0], [None] * size
    monkeypatch.setattr(preemption, "is_preempted", lambda: runs_of_0[0] >= told_after)
    random = Random(seed)
    net = Net(size, random)
    meet = threading.Barrier(size, timeout=LIMIT_S)

    def work(rank):
        one = Preemption(Comm(net, rank))
        for run in range(1, RUNS + 1):
            if not loose or run % 3 == 0:  # a run of all ends nowhere before it has begun everywhere
                meet.wait()
            if rank == 0:
                runs_of_0[0] = run
            if one.is_now():
                found[rank] = run
                return

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert not any(thread.is_alive() for thread in threads)
    return found


@pytest.mark.parametrize("loose", [False, True], ids=["in step", "in step now and then"])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_all_workers_save_after_the_same_run_soon_after_one_was_told(size, loose, monkeypatch):
    for seed in range(20):
        found = stops(size, 7, seed, monkeypatch, loose)
        assert len(set(found)) == 1 and found[0] is not None and 7 <= found[0] < 40, (seed, found)


def test_nobody_saves_when_nobody_is_told_and_a_script_may_end_in_the_midst_of_the_agreement(monkeypatch):
    assert stops(3, RUNS + 1, 1, monkeypatch) == [None] * 3
    assert stops(3, RUNS, 1, monkeypatch) == [None] * 3


def test_asynchronous_workers_are_called_by_worker_0():
    net = Net(2, Random(3))
    caller, other = Preemption(Comm(net, 0)), Preemption(Comm(net, 1))
    assert other.read_call() is None and caller.read_call() is None
    caller.call(40)
    assert next(step for _ in range(9) if (step := other.read_call()) is not None) == 40


def test_a_saved_job_is_told_by_worker_0_and_no_script_takes_its_leave_for_its_own(monkeypatch):
    told = []
    monkeypatch.setattr(preemption, "barrier", lambda comm: None)
    monkeypatch.setattr(preemption, "send", told.append)
    for rank in range(2):
        with pytest.raises(Preempted):
            Preemption(Comm(Net(2, Random(1)), rank)).leave(12)
    assert told == [{"kind": "preempted", "step": 12}]
    assert not issubclass(Preempted, Exception | SystemExit | KeyboardInterrupt)
