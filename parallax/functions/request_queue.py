"""Requests of the process that drives workers, in order; they are sent again to workers that replace failed ones.

What workers have is what the requests so far have made of it. So a queue that can be restored keeps them, from the last
point on at which the workers' variables are known: those of a checkpoint, or values that this process has read. After a
failure the workers' next job opens the session again, gets these values, and the requests since then.
"""

from __future__ import annotations

import math
import pickle
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from parallax.errors import SessionError
from parallax.functions.serving import DriverRequest, ReadyWorkers
from parallax.runtime.driver_channel import ChannelClosed, DriverConnection, deferred_interrupts
from parallax.types import Picklable

Restore = Callable[[], tuple[DriverConnection, ReadyWorkers]]
"""Waits for the next job's workers and opens the session there; raises ChannelClosed when there will be none."""

_LOST = (
    "The workers have the checkpoint of step {step}, and failed before they gave the results of that step, which "
    "`fit` needs. Run the script again: it goes on from there."
)
_GONE = (
    "The workers go on from step {step} of the checkpoints, and the requests after it are no longer kept: those since "
    "step {first} are. Keep the files of the latest checkpoint while the job runs."
)


class Resend(Enum):
    """When a request is sent again."""

    UNANSWERED = auto()
    SINCE_BASE = auto()
    ALWAYS = auto()


@dataclass(slots=True, eq=False)
class SentRequest:
    """A request, kept for the next workers.

    Attributes:
        data: the pickled `DriverRequest`.
        own: what worker 0 alone gets: pickled, or, of a request that is always sent again, as it is; None for nothing.
        number: of its answer, in order; None for a request without one.
        resend: when it is sent again.
        at: how many counted steps were asked for before it.
        note: what its sender knows of it.
    """

    data: bytes
    own: Picklable
    number: int | None
    resend: Resend
    at: int
    note: object = None

    @property
    def num_bytes(self) -> int:
        """Of what is kept."""
        return len(self.data) + (len(self.own) if isinstance(self.own, bytes) else 0)


class RequestWatcher(Protocol):
    """Follows which requests are kept."""

    def on_forget(self, requests: Iterable[SentRequest]) -> None:
        """Takes requests that will never be sent again, in order."""

    def on_restore(self, requests: Iterable[SentRequest]) -> None:
        """Takes those that are sent to other workers now, in order."""


class RequestQueue:
    """Requests to workers, which answer some of them, in order.

    Attributes:
        has_recovered: whether workers have failed and others have gone on.
        kept_bytes: of the requests that would be sent again.
        watcher: follows which requests are kept.

    Args:
        channel: to worker 0.
        restore: how workers are replaced that have failed; None where their failure ends it.
    """

    def __init__(self, channel: DriverConnection, restore: Restore | None = None) -> None:
        self._channel, self._restore = channel, restore
        self.watcher: RequestWatcher | None = None
        self.has_recovered = False
        self.kept_bytes = 0
        self._asked = self._heard = 0  # requests with answers, and answers
        self._answers: dict[int, Picklable] = {}
        self._opening: int | None = None
        self._steps = self._first = 0  # counted steps so far, and before the requests that are kept
        self._base: list[SentRequest] = []
        self._setup: list[SentRequest] = []
        self._log: deque[SentRequest] = deque()

    @property
    def is_restorable(self) -> bool:
        """Whether requests are kept for workers that replace failed ones."""
        return self._restore is not None

    def open(self, kind: str, *arguments: Picklable) -> Callable[..., Picklable]:
        """Opens or resumes a session, which restored workers have already; arguments and result are those of `ask`."""
        self._opening = self._asked
        return self._ask(kind, arguments, None, Resend.UNANSWERED, None, is_logged=False)

    def begin_at(self, step: int) -> None:
        """Says how many counted steps the session has run."""
        self._steps = self._first = step

    def tell(
        self,
        kind: str,
        *arguments: Picklable,
        own: Picklable = None,
        resend: Resend = Resend.SINCE_BASE,
        note: object = None,
    ) -> None:
        """Sends a request that has no answer.

        Args:
            kind: of it.
            arguments: for all workers.
            own: for worker 0 alone.
            resend: when it is sent again.
            note: for `on_forget` and `on_restore`.

        Raises:
            ChannelClosed: the workers have gone.
        """
        self._send(self._request(kind, arguments, own, None, resend, note))

    def ask(
        self,
        kind: str,
        *arguments: Picklable,
        own: Picklable = None,
        resend: Resend = Resend.UNANSWERED,
        note: object = None,
        counts: bool = False,
    ) -> Callable[..., Picklable]:
        """Sends a request that has an answer.

        Args:
            kind: as that of `tell`, with all the others.
            arguments: as there.
            own: as there.
            resend: as there.
            note: as there.
            counts: whether it is a counted step.

        Returns:
            A function that waits for the answer and returns it. It takes a timeout in seconds, infinite by default, and
            raises TimeoutError, or ChannelClosed where the workers have gone.
        """
        return self._ask(kind, arguments, own, resend, note, counts=counts)

    def rebase(self, requests: Iterable[tuple[str, tuple[Picklable, ...], Picklable]]) -> None:
        """Has restored workers begin with other requests than those so far.

        Args:
            requests: kind, arguments, and what worker 0 alone gets of each; they have no answers.
        """
        self._forget(list(self._log))
        self._log.clear()
        self._base = [
            self._request(kind, arguments, own, None, Resend.SINCE_BASE, None) for kind, arguments, own in requests
        ]
        self._count_bytes()

    def forget_until(self, step: int) -> None:
        """Lets go of requests that a checkpoint of a counted step has the effect of, as far as they are answered."""
        dropped: list[SentRequest] = []
        while self._log and self._log[0].at < step and self._is_answered(self._log[0]):
            dropped.append(self._log.popleft())
        if dropped:
            self._first = dropped[-1].at + 1
            self._base = []
        self._forget(dropped)
        self._count_bytes()

    def give_up(self) -> None:
        """Keeps no requests from now on: a failure of the workers ends it."""
        self._restore = None
        self._base, self._setup = [], []
        self._log.clear()
        self.kept_bytes = 0

    def _ask(
        self,
        kind: str,
        arguments: tuple[Picklable, ...],
        own: Picklable,
        resend: Resend,
        note: object,
        is_logged: bool = True,
        counts: bool = False,
    ) -> Callable[..., Picklable]:
        number = self._asked
        request = self._request(kind, arguments, own, number, resend, note)
        self._asked += 1
        self._steps += counts
        self._send(request, is_logged)

        def wait(seconds: float = math.inf) -> Picklable:
            until_s = time.monotonic() + seconds
            while number not in self._answers:
                try:
                    self._channel.wait(until_s)
                    with deferred_interrupts():
                        self._answers[self._heard] = self._channel.receive()
                        self._heard += 1
                except ChannelClosed:
                    self._recover()
            return self._answers.pop(number)

        return wait

    def _request(
        self,
        kind: str,
        arguments: tuple[Picklable, ...],
        own: Picklable,
        number: int | None,
        resend: Resend,
        note: object,
    ) -> SentRequest:
        data = pickle.dumps(DriverRequest(kind, arguments, own is not None), protocol=5)
        if own is not None and resend is not Resend.ALWAYS:
            own = pickle.dumps(own, protocol=5)
        return SentRequest(data, own, number, resend, self._steps, note)

    def _send(self, request: SentRequest, is_logged: bool = True) -> None:
        try:
            with deferred_interrupts():
                if self._restore is not None and is_logged:
                    (self._setup if request.resend is Resend.ALWAYS else self._log).append(request)
                    self.kept_bytes += request.num_bytes
                _send_on(self._channel, request)
        except ChannelClosed:
            self._recover()

    def _recover(self) -> None:
        """Has the next job's workers take over.

        Raises:
            ChannelClosed: there will be none.
            SessionError: they cannot go on from their checkpoint.
        """
        if self._restore is None:
            raise ChannelClosed
        restore, self._restore = self._restore, None  # an interrupt leaves a queue that does not recover
        self.has_recovered = True
        while True:
            channel, ready = restore()
            try:
                self._send_again(channel, ready)
            except ChannelClosed:
                continue
            break
        self._restore = restore

    def _send_again(self, channel: DriverConnection, ready: ReadyWorkers) -> None:
        self._channel = channel
        if self._opening is not None and self._opening == self._heard:
            self._answers[self._heard] = ready
            self._heard += 1
        self._check_step(ready.resumed_step or 0)
        self.forget_until(ready.resumed_step or 0)
        if self.watcher is not None:
            self.watcher.on_restore(self._log)
        for request in [*self._setup, *self._base, *self._log]:
            if request.resend is Resend.UNANSWERED and self._is_answered(request):
                continue
            _send_on(channel, request)
            if request.number is not None and self._is_answered(request):
                channel.receive()  # it is known; so neither side waits for the other with full buffers

    def _check_step(self, step: int) -> None:
        """Refuses to go on from a checkpoint where requests after it, or results before it, are not known.

        Raises:
            SessionError: they are not.
        """
        if step < self._first:
            raise SessionError(_GONE.format(step=step, first=self._first))
        if any(request.at < step and not self._is_answered(request) for request in self._log):
            raise SessionError(_LOST.format(step=step))

    def _is_answered(self, request: SentRequest) -> bool:
        return request.number is None or request.number < self._heard

    def _forget(self, dropped: list[SentRequest]) -> None:
        if dropped and self.watcher is not None:
            self.watcher.on_forget(dropped)

    def _count_bytes(self) -> None:
        self.kept_bytes = sum(one.num_bytes for one in [*self._setup, *self._log])


def _send_on(channel: DriverConnection, request: SentRequest) -> None:
    channel.send_bytes(request.data)
    if isinstance(request.own, bytes):
        channel.send_bytes(request.own)
    elif request.own is not None:
        channel.send(request.own)
