"""Sends parts from the host of their owner to another host: in a ring of hosts, each to the next."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from parallax.base.types import Array, Buffer, Comm
from parallax.runtime.worker.polling import has_message, is_done

PIECE_BYTES = 16 * 2**20
_DATA, _END = 1, 2
_FIRST_PAUSE_S, _LAST_PAUSE_S = 5e-5, 1e-3


@dataclass(frozen=True, slots=True)
class Ring:
    """A worker's neighbours in the ring.

    Attributes:
        target: the worker that receives this worker's part; None if there is one host.
        senders: the workers whose parts this worker receives.
    """

    target: int | None
    senders: tuple[int, ...]


def ring(hosts: Sequence[int], rank: int) -> Ring:
    """Returns the neighbours of a worker in the ring.

    Args:
        hosts: the host number of each worker.
        rank: of the worker.
    """
    targets = [_target(hosts, one) for one in range(len(hosts))]
    return Ring(targets[rank], tuple(one for one, target in enumerate(targets) if target == rank))


def _target(hosts: Sequence[int], rank: int) -> int | None:
    """The worker on the next host with the same local rank, modulo the number of workers there."""
    by_host: dict[int, list[int]] = {}
    for other, host in enumerate(hosts):
        by_host.setdefault(host, []).append(other)
    order = list(by_host)
    if len(order) == 1:
        return None
    following = by_host[order[(order.index(hosts[rank]) + 1) % len(order)]]
    return following[by_host[hosts[rank]].index(rank) % len(following)]


def exchange(comm: Comm, place: Ring, pieces: Iterable[Buffer], deliver: Callable[[int, Array], None]) -> int:
    """Sends this worker's pieces, and receives those of its senders as they arrive; every worker must call it.

    Args:
        comm: communicator of the workers, for this alone.
        place: of this worker.
        pieces: the pieces to send; each of at most PIECE_BYTES.
        deliver: called with a sender's rank and a piece, uint8 `[n]`, in the sender's order.

    Returns:
        The number of bytes sent.
    """
    from mpi4py import MPI

    coming, status = set(place.senders), MPI.Status()
    waiting = iter(pieces)
    request, has_ended, sent_bytes, pause_s = None, place.target is None, 0, _FIRST_PAUSE_S
    while request is not None or not has_ended or coming:
        moved = False
        if request is not None and is_done(request):
            request, moved = None, True
        if request is None and not has_ended:
            piece = next(waiting, None)
            has_ended = piece is None
            data = np.frombuffer(b"" if piece is None else piece, np.uint8)  # stays until it is sent
            request = comm.Isend([data, MPI.BYTE], place.target, _END if has_ended else _DATA)
            sent_bytes, moved = sent_bytes + len(data), True
        for sender in sorted(coming):
            if not has_message(comm, sender, status=status):
                continue
            data_in = np.empty(status.Get_count(MPI.BYTE), np.uint8)
            tag, moved = status.Get_tag(), True
            comm.Recv([data_in, MPI.BYTE], sender, tag)
            if tag == _END:
                coming.discard(sender)
            else:
                deliver(sender, data_in)
        pause_s = _FIRST_PAUSE_S if moved else min(2 * pause_s, _LAST_PAUSE_S)
        if not moved:
            time.sleep(pause_s)
    return sent_bytes


def cut(pieces: Iterable[Buffer]) -> Iterable[Buffer]:
    """Splits bytes into pieces of at most PIECE_BYTES; consecutive small ones are merged."""
    small = bytearray()
    for piece in pieces:
        view = memoryview(piece).cast("B") if memoryview(piece).nbytes else memoryview(b"")
        for begin in range(0, view.nbytes, PIECE_BYTES):
            part = view[begin : begin + PIECE_BYTES]
            if len(small) + part.nbytes > PIECE_BYTES:
                yield bytes(small)
                small.clear()
            small += part
    if small:
        yield bytes(small)
