"""The ordered requests of the process that drives workers; they are sent again to workers that replace failed ones.

The state of the workers is the result of the requests so far. So a recoverable queue stores the requests since the last
point at which the workers' variables are known: those of a checkpoint, or values that this process has read. After a
failure the workers' next job opens the session again, and receives these values and the requests since then.
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

from parallax.base.errors import SessionError
from parallax.base.types import Picklable
from parallax.functions.remote.request_receiver import DriverRequest
from parallax.functions.remote.serve_driver import ReadyWorkers
from parallax.runtime.driver_channel import ChannelClosed, DriverConnection, deferred_interrupts

Restore = Callable[[], tuple[DriverConnection, ReadyWorkers]]
"""Waits for the next job's workers and opens the session there; raises ChannelClosed if there will be none."""

_LOST = (
    "The workers failed after writing the checkpoint of step {step}, and before returning the results of that step, "
    "which `fit` needs. Run the script again: it resumes from that checkpoint."
)
_GONE = (
    "The workers resumed from the checkpoint of step {step}, but requests are kept only from step {first} on. Do "
    "not remove the latest checkpoint while the job runs."
)


class Resend(Enum):
    """The conditions under which a request is sent again."""

    UNANSWERED = auto()
    SINCE_BASE = auto()
    ALWAYS = auto()


class RequestNote(Protocol):
    """A request's callback to its sender."""

    def on_answer(self, answer: Picklable) -> None:
        """Receives the answer as soon as it arrives, before a caller waits for it."""


@dataclass(slots=True, eq=False)
class SentRequest:
    """A request, stored for the next workers.

    Attributes:
        data: the pickled `DriverRequest`.
        payload: for worker 0 alone; pickled already, unless the request is always sent again. None for no payload.
        has_answer: whether workers answer it.
        resend: the condition for sending it again.
        note: its sender's.
        counts: whether it runs a counted step.
        number: the index of its answer.
        at: the number of counted steps requested before it.
    """

    data: bytes
    payload: Picklable
    has_answer: bool
    resend: Resend
    note: RequestNote | None
    counts: bool = False
    number: int = -1
    at: int = 0

    @staticmethod
    def of(
        kind: str,
        arguments: tuple[Picklable, ...],
        payload: Picklable = None,
        has_answer: bool = False,
        resend: Resend = Resend.SINCE_BASE,
        note: RequestNote | None = None,
        counts: bool = False,
    ) -> SentRequest:
        """Packs a request, so that later changes by its sender have no effect."""
        data = pickle.dumps(DriverRequest(kind, arguments, payload is not None), protocol=5)
        if payload is not None and resend is not Resend.ALWAYS:
            payload = pickle.dumps(payload, protocol=5)
        return SentRequest(data, payload, has_answer, resend, note, counts)

    @property
    def num_bytes(self) -> int:
        """Bytes of the stored data."""
        return len(self.data) + (len(self.payload) if isinstance(self.payload, bytes) else 0)


class RequestWatcher(Protocol):
    """Tracks the requests that are stored."""

    def on_forget(self, requests: Iterable[SentRequest]) -> None:
        """Receives answered requests that will never be sent again, in order."""

    def on_restore(self, requests: Iterable[SentRequest]) -> None:
        """Receives the requests that are now sent to other workers, in order."""


class RequestQueue:
    """The ordered requests to workers, which answer some of them.

    Attributes:
        has_recovered: whether workers have failed and others have continued.
        has_failed: whether a failure of the workers is final.
        stored_bytes: of the requests since the base, which would be sent again.
        watcher: tracks the requests that are stored.

    Args:
        channel: to worker 0.
        restore: replaces workers that have failed; None where their failure is final.
    """

    def __init__(self, channel: DriverConnection, restore: Restore | None = None) -> None:
        self._channel, self._restore = channel, restore
        self.watcher: RequestWatcher | None = None
        self.has_recovered, self.has_failed = False, restore is None
        self.stored_bytes = 0
        self._requested_count = self._answered_count = 0  # requests with answers, and answers
        self._waiting: deque[SentRequest] = deque()  # for their answers
        self._answers: dict[int, Picklable] = {}
        self._opening: SentRequest | None = None
        self._steps = self._first = 0  # counted steps so far, and before the stored requests
        self._base: list[SentRequest] = []
        self._setup: list[SentRequest] = []
        self._log: deque[SentRequest] = deque()

    @property
    def is_on_this_machine(self) -> bool:
        """Whether worker 0 is on this host, and that of a next job too."""
        return self._channel.is_on_this_machine

    @property
    def is_restorable(self) -> bool:
        """Whether requests are stored for workers that replace failed ones."""
        return self._restore is not None

    def open(self, kind: str, *arguments: Picklable) -> Callable[..., Picklable]:
        """Opens or resumes a session, which restored workers already have; arguments and result are those of `call`."""
        self._opening = SentRequest.of(kind, arguments, has_answer=True, resend=Resend.UNANSWERED)
        return self._send(self._opening, is_logged=False)

    def begin_at(self, step: int) -> None:
        """Sets the number of counted steps that the session has run."""
        self._steps = self._first = step

    def notify(
        self,
        kind: str,
        *arguments: Picklable,
        payload: Picklable = None,
        resend: Resend = Resend.SINCE_BASE,
        note: RequestNote | None = None,
    ) -> None:
        """Sends a request that has no answer.

        Args:
            kind: of it.
            arguments: for all workers.
            payload: for worker 0 alone.
            resend: the condition for sending it again.
            note: for the watcher.

        Raises:
            ChannelClosed: the workers have ended.
        """
        self._send(SentRequest.of(kind, arguments, payload, resend=resend, note=note))

    def call(
        self,
        kind: str,
        *arguments: Picklable,
        payload: Picklable = None,
        resend: Resend = Resend.UNANSWERED,
        note: RequestNote | None = None,
        counts: bool = False,
    ) -> Callable[..., Picklable]:
        """Sends a request that has an answer.

        Args:
            kind: as for `notify`, like all the others.
            arguments: as for `notify`.
            payload: as for `notify`.
            resend: as for `notify`.
            note: as for `notify`; it gets the answer too.
            counts: whether it is a counted step.

        Returns:
            A function that waits for the answer and returns it. Its argument is a timeout in seconds, infinite by
            default. It raises TimeoutError, or ChannelClosed where the workers have ended.
        """
        return self._send(SentRequest.of(kind, arguments, payload, True, resend, note, counts))

    def rebase(self, requests: Iterable[SentRequest] | None = None) -> None:
        """Makes restored workers begin with other requests than those so far, which are all answered.

        Args:
            requests: without answers; None for those that were sent so far.
        """
        if requests is None:
            self._base += self._log
        else:
            self._drop_requests(list(self._log))
            self._base = list(requests)
        self._log.clear()
        self.stored_bytes = 0

    def forget_until(self, step: int) -> None:
        """Drops answered requests whose effect is in a checkpoint of a counted step."""
        dropped: list[SentRequest] = []
        while self._log and self._log[0].at < step and self._is_answered(self._log[0]):
            dropped.append(self._log.popleft())
            self.stored_bytes -= dropped[-1].num_bytes
        if dropped:
            self._first, self._base = dropped[-1].at + 1, []
        self._drop_requests(dropped)

    def give_up(self) -> None:
        """Stores no requests from now on: a failure of the workers becomes final."""
        self.has_failed, self._restore = True, None
        self._base, self._setup = [], []
        self._log.clear()
        self.stored_bytes = 0

    def _send(self, request: SentRequest, is_logged: bool = True) -> Callable[..., Picklable]:
        """Sends a request; returns a function that waits for its answer."""
        try:
            with deferred_interrupts():  # a number without its request would shift all later answers
                request.at = self._steps
                self._steps += request.counts
                if request.has_answer:
                    request.number = self._requested_count
                    self._requested_count += 1
                    self._waiting.append(request)
                if self._restore is not None and is_logged:
                    is_setup = request.resend is Resend.ALWAYS
                    (self._setup if is_setup else self._log).append(request)
                    self.stored_bytes += 0 if is_setup else request.num_bytes
                _send_on(self._channel, request)
        except ChannelClosed:
            self._recover()

        def wait(seconds: float = math.inf) -> Picklable:
            until_s = time.monotonic() + seconds
            while request.number not in self._answers:
                try:
                    self._channel.wait(until_s)
                    with deferred_interrupts():
                        self._process_answer(self._channel.receive())
                except ChannelClosed:
                    self._recover()
            return self._answers.pop(request.number)

        return wait

    def _process_answer(self, answer: Picklable) -> None:
        """Processes the next answer."""
        request = self._waiting.popleft()
        self._answers[request.number] = answer
        self._answered_count += 1
        if request.note is not None:
            request.note.on_answer(answer)

    def _recover(self) -> None:
        """Hands over to the next job's workers.

        Raises:
            ChannelClosed: there will be none.
            SessionError: they cannot resume from their checkpoint.
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
        if self._waiting and self._waiting[0] is self._opening:
            self._process_answer(ready)
        self._check_step(ready.resumed_step or 0)
        self.forget_until(ready.resumed_step or 0)
        if self.watcher is not None:
            self.watcher.on_restore(self._log)
        for request in [*self._setup, *self._base, *self._log]:
            if request.resend is Resend.UNANSWERED and self._is_answered(request):
                continue
            _send_on(channel, request)
            if request.has_answer and self._is_answered(request):
                channel.receive()  # it is known; so neither side waits for the other with full buffers

    def _check_step(self, step: int) -> None:
        """Refuses to resume from a checkpoint where requests after it, or results before it, are unknown.

        Raises:
            SessionError: they are unknown.
        """
        if step < self._first:
            raise SessionError(_GONE.format(step=step, first=self._first))
        if any(request.at < step and not self._is_answered(request) for request in self._log):
            raise SessionError(_LOST.format(step=step))

    def _is_answered(self, request: SentRequest) -> bool:
        return not request.has_answer or request.number < self._answered_count

    def _drop_requests(self, dropped: list[SentRequest]) -> None:
        if dropped and self.watcher is not None:
            self.watcher.on_forget(dropped)


def _send_on(channel: DriverConnection, request: SentRequest) -> None:
    channel.send_bytes(request.data)
    if isinstance(request.payload, bytes):
        channel.send_bytes(request.payload)
    elif request.payload is not None:
        channel.send(request.payload)
