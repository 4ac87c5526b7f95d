"""Receives the requests of the process that drives workers: worker 0 reads each one and broadcasts it to the others."""

from __future__ import annotations

import os
import pickle
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from parallax.base.types import Comm, Picklable
from parallax.runtime.driver_channel import ChannelClosed, DriverConnection
from parallax.runtime.worker.barrier import wait_for
from parallax.runtime.worker.ranks import bytes_of_rank_0

_LETTER_BYTES = 2048
"""Longer requests take a second message among workers."""
_WATCH_S = 5e-4
"""Seconds for which a worker polls for the next request before it sleeps between polls."""


class DriverRequest(NamedTuple):
    """A request of the driver.

    Attributes:
        kind: a method of the workers' service (serve_driver.py).
        arguments: broadcast to all workers.
        has_more: whether another message follows for worker 0 alone.
    """

    kind: str
    arguments: tuple[Picklable, ...] = ()
    has_more: bool = False


END = DriverRequest("end")


class RequestReceiver:
    """The sequence of requests, which is the same on all workers.

    Args:
        channel: worker 0's to the driver; None on other workers.
        workers: a communicator of the workers, who all make the same calls.
        prepare: receives a request and worker 0's message for it as soon as they arrive, and returns a replacement for
            the latter.
    """

    def __init__(
        self, channel: DriverConnection | None, workers: Comm, prepare: Callable[[DriverRequest, Picklable], Picklable]
    ) -> None:
        self._channel, self._workers, self._prepare = channel, workers, prepare
        self._ahead: deque[tuple[DriverRequest, Picklable]] = deque()

    def receive(self) -> tuple[DriverRequest, Picklable]:
        """Waits for the next request, and returns it with the result of `prepare`. The last one is `END`."""
        return self._ahead.popleft() if self._ahead else self._receive_next()

    def prefetch(self) -> None:
        """Receives the request after the current one, if it has arrived, so that it is prepared concurrently."""
        if self._ahead:
            return
        has_come = self._channel is not None and self._channel.has_come()
        if self._workers.Get_size() > 1:
            has_come = self._workers.bcast(has_come)
        if has_come:
            self._ahead.append(self._receive_next())

    def _receive_next(self) -> tuple[DriverRequest, Picklable]:
        data = b""
        if self._channel is not None:
            try:
                data = self._channel.receive_bytes()
            except ChannelClosed:
                data = pickle.dumps(END)
        if self._workers.Get_size() > 1:
            data = _from_worker_0(data, self._workers)
        request: DriverRequest = pickle.loads(data)
        payload = self._channel.receive() if self._channel is not None and request.has_more else None
        return request, self._prepare(request, payload)


def _from_worker_0(data: bytes, workers: Comm) -> bytes:
    """Worker 0's bytes on all workers; waiting workers yield their core, and worker 0 does not wait."""
    letter = np.zeros(_LETTER_BYTES, np.uint8)
    if workers.Get_rank() == 0:
        letter[:8].view(np.int64)[0] = len(data)
        letter[8 : 8 + len(data)] = np.frombuffer(data[: _LETTER_BYTES - 8], np.uint8)
        sent = [workers.Isend(letter, other) for other in range(1, workers.Get_size())]  # small: they are sent eagerly
        for one in sent:
            one.Wait()
    else:
        request, until_s = workers.Irecv(letter, 0), time.monotonic() + _WATCH_S
        while time.monotonic() < until_s and not request.Test():
            os.sched_yield()  # the next step comes soon
        wait_for(request)
    length = int(letter[:8].view(np.int64)[0])
    if length > _LETTER_BYTES - 8:
        return bytes(bytes_of_rank_0(data if workers.Get_rank() == 0 else None, workers))
    return letter[8 : 8 + length].tobytes()
