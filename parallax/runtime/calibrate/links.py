"""Measures the rates of the hosts' links by MPI messages: one host sends to all others, then receives from all of them.

Each of the others has its own messages in flight, a few at a time, and a new one follows when one has arrived: a slow
host delays no other, so the one host's link is the bottleneck, unless it carries more than the links of all others
together. (Two hosts with different links are both measured at the rate of the slower; no more passes between them.) The
rate is the slope of the bytes that have arrived over time, after the initial burst that links let through above their
rate.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from parallax.base.types import Comm, MpiDatatype, MpiRequest
from parallax.runtime.worker.polling import has_message

_DATA, _END, _STOP = 1, 2, 3  # tags
_CHUNK_BYTES = 1 << 16
_WINDOW = 4  # messages in flight to each peer
_SKIPPED_S = 0.15
_COUNTED_S = 0.3
_LEAST_CHUNKS = 32
_LIMIT_S, _LIMIT_CHUNKS = 5.0, 4  # the measurement of a slow link is limited in time


class _Arrivals:
    """Bytes that have arrived, with their times."""

    def __init__(self) -> None:
        self._began_s = time.perf_counter()
        self._at_s: list[float] = []

    def add(self) -> None:
        self._at_s.append(time.perf_counter() - self._began_s)

    def is_enough(self) -> bool:
        now_s = time.perf_counter() - self._began_s
        if now_s < _SKIPPED_S + _COUNTED_S:
            return False
        return len(self._count_arrivals()) >= (_LEAST_CHUNKS if now_s < _LIMIT_S else _LIMIT_CHUNKS)

    def rate_bytes_per_s(self) -> float:
        times = self._count_arrivals()
        slope = np.polyfit(times, np.arange(len(times)) * float(_CHUNK_BYTES), 1)[0]
        return float(slope)

    def _count_arrivals(self) -> list[float]:
        return [at_s for at_s in self._at_s if at_s > _SKIPPED_S]


def link_rates(comm: Comm) -> list[tuple[float, float]]:
    """Measures each member's link; every member must call it.

    Args:
        comm: a communicator with a member on each host.

    Returns:
        (sending, receiving) in bytes per second, by member, the same on all.
    """
    mine = (0.0, 0.0)
    for hub in range(comm.size):
        others = [peer for peer in range(comm.size) if peer != hub]
        comm.Barrier()
        out = _measure_sending(comm, hub, others)
        comm.Barrier()
        into = _measure_receiving(comm, hub, others)
        if comm.rank == hub:
            mine = (out, into)
    return list(comm.allgather(mine))


def _measure_sending(comm: Comm, hub: int, others: list[int]) -> float:
    if comm.rank != hub:
        _receive(comm, [hub], lambda: None)
        return 0.0
    arrivals = _Arrivals()
    _send(comm, others, arrivals.is_enough, arrivals.add)
    return arrivals.rate_bytes_per_s()


def _measure_receiving(comm: Comm, hub: int, others: list[int]) -> float:
    if comm.rank != hub:
        _send(comm, [hub], lambda: has_message(comm, hub, _STOP), lambda: None)
        comm.Recv([bytearray(0), 0, _byte()], hub, _STOP)
        return 0.0
    arrivals = _Arrivals()
    requests: list[MpiRequest] = []

    def note_arrival() -> None:
        arrivals.add()
        if not requests and arrivals.is_enough():
            requests.extend(comm.Isend([b"", 0, _byte()], peer, _STOP) for peer in others)

    _receive(comm, others, note_arrival)
    for request in requests:
        request.Wait()
    return arrivals.rate_bytes_per_s()


def _send(comm: Comm, peers: Sequence[int], is_enough: Callable[[], bool], arrived: Callable[[], None]) -> None:
    """Sends chunks to all peers, each at its own pace, until enough have arrived, and then an end message."""
    from mpi4py import MPI

    chunk = [bytes(_CHUNK_BYTES), _CHUNK_BYTES, MPI.BYTE]
    peer_by_place = [peer for peer in peers for _ in range(_WINDOW)]
    # Issend completes when the message has been received, not when it has been buffered.
    requests = [comm.Issend(chunk, peer, _DATA) for peer in peer_by_place]
    while True:
        place = MPI.Request.Waitany(requests)
        arrived()
        if is_enough():
            break
        requests[place] = comm.Issend(chunk, peer_by_place[place], _DATA)
    MPI.Request.Waitall(requests)
    for peer in peer_by_place:  # one for each receive that is pending there
        comm.Send([b"", 0, MPI.BYTE], peer, _END)


def _receive(comm: Comm, peers: Sequence[int], arrived: Callable[[], None]) -> None:
    """Receives chunks from all peers until each has sent its end message."""
    from mpi4py import MPI

    peer_by_place = [peer for peer in peers for _ in range(_WINDOW)]
    buffers = [[bytearray(_CHUNK_BYTES), _CHUNK_BYTES, MPI.BYTE] for _ in peer_by_place]

    def take(place: int) -> MpiRequest:
        return comm.Irecv(buffers[place], peer_by_place[place], MPI.ANY_TAG)

    requests = [take(place) for place in range(len(peer_by_place))]
    status, ended = MPI.Status(), 0
    while ended < len(requests):
        place = MPI.Request.Waitany(requests, status)
        if status.Get_tag() == _END:
            ended += 1
            continue
        arrived()
        requests[place] = take(place)


def _byte() -> MpiDatatype:
    from mpi4py import MPI

    return MPI.BYTE
