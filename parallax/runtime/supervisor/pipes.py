"""A supervisor's pipes: the worker's output becomes frames, which are sent to mpirun without blocking."""

from __future__ import annotations

import codecs
import os
import time
from collections.abc import Iterator
from typing import Protocol

from parallax.runtime.supervisor.control import BEAT, DamagedMessage, check_message, read_sealed
from parallax.runtime.supervisor.frames import Control, Frame, StreamName, Text, encode_frame
from parallax.runtime.supervisor.state_machine import HeartbeatReceived

IDLE_S = 0.2  # text without a newline waits this long for the rest of its line (progress bars, prompts)
READ_BYTES = 1 << 16


class Outbox:
    """A non-blocking queue of frames to mpirun.

    A supervisor that blocked in a write could neither receive nor terminate anything while mpirun, or its daemon, is
    stopped.

    Args:
        fd: mpirun's pipe.
    """

    FULL_BYTES = 1 << 20  # from here on the worker's pipes are not read

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._waiting = bytearray()
        os.set_blocking(fd, False)

    @property
    def is_empty(self) -> bool:
        """Whether all frames are sent."""
        return not self._waiting

    @property
    def is_full(self) -> bool:
        """Whether the queue is so long that nothing more should be added."""
        return len(self._waiting) >= self.FULL_BYTES

    def put(self, *frames: Frame) -> None:
        """Adds frames, and sends as many as mpirun accepts now; OSError when they have no reader."""
        for frame in frames:
            self._waiting += encode_frame(frame)
        self.send()

    def send(self) -> None:
        """Sends as many as mpirun accepts now; OSError (EIO or EPIPE) when they have no reader."""
        while self._waiting:
            try:
                sent = os.write(self.fd, self._waiting[:READ_BYTES])
            except BlockingIOError:
                return
            del self._waiting[:sent]


class Channel(Protocol):
    """One of the worker's pipes, whose data becomes frames."""

    @property
    def may_wait(self) -> bool:
        """Whether the worker's output has to wait while mpirun reads nothing."""

    @property
    def waiting(self) -> str | bytes:
        """Data that has arrived and is in no frame yet."""

    def feed(self, data: bytes) -> Iterator[Frame | HeartbeatReceived]:
        """Yields the frames or heartbeats that `data` completes."""

    def rest(self, last: bool) -> Iterator[Frame]:
        """Yields the incomplete data, when it has waited long enough or nothing more arrives."""


class TextChannel:
    """The worker's stdout or stderr: forwarded in whole lines, or after a pause."""

    may_wait = True

    def __init__(self, rank: int, stream: StreamName) -> None:
        self._rank = rank
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self.waiting = ""
        self._since_s = 0.0

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that `data` completes."""
        text = self.waiting + self._decoder.decode(data)
        cut = max(text.rfind("\n"), text.rfind("\r")) + 1
        if len(text) - cut > READ_BYTES:
            cut = len(text)
        self.waiting = text[cut:]
        self._since_s = time.monotonic()
        if cut:
            yield Text(self._rank, self._stream, text[:cut])

    def rest(self, last: bool) -> Iterator[Frame]:
        """Yields a frame of the incomplete data, when it has waited long enough or nothing more arrives."""
        if last:
            self.waiting += self._decoder.decode(b"", True)
        if self.waiting and (last or time.monotonic() - self._since_s >= IDLE_S):
            yield Text(self._rank, self._stream, self.waiting)
            self.waiting = ""


class ControlChannel:
    """The worker's messages, one sealed line each; heartbeats are for the supervisor itself."""

    may_wait = False

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self.waiting = b""

    def feed(self, data: bytes) -> Iterator[Frame | HeartbeatReceived]:
        """Yields the frames of the messages that `data` completes, and its heartbeats."""
        *lines, self.waiting = (self.waiting + data).split(b"\n")
        for line in lines:
            try:
                message = check_message(read_sealed(line))
            except DamagedMessage as error:  # another process writes to the pipe too, or another version of Parallax
                yield Text(self._rank, "stderr", f"parallax: a message of this rank was dropped: {error}.\n")
            else:
                yield HeartbeatReceived(message) if message.get("kind") == BEAT else Control(self._rank, message)

    def rest(self, last: bool) -> Iterator[Frame]:
        """Yields nothing: half a message of a dead worker has no meaning."""
        return iter(())
