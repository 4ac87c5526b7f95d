"""Message channel between the process that drives workers and worker 0.

On one machine the driver listens at an abstract socket address, which leaves no file behind; for a worker 0 on another
machine it listens at a TCP port. A peer must know a key that travels with the job's message; a stranger is disconnected
before any of its bytes are unpickled.
"""

from __future__ import annotations

import math
import pickle
import secrets
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge

from parallax.base.errors import LaunchError
from parallax.base.types import Picklable

_POLL_S = 0.1
_PATIENCE_S = 10.0
_PROBE_S, _PROBES = 5, 4
"""TCP keepalive: a machine that leaves so many probes unanswered, at this interval, is considered lost."""
_NO_PORT = (
    "The script's process drives workers on other machines, for which it needs {span} of {own}, but got none: "
    "{reason}. Widen `ports` of the resource file."
)
_NOT_REACHED = (
    "Worker 0 must reach the process that drives the workers at {place}, but cannot: {reason}. Open that port "
    "between the two machines; `ports` of the resource file says which ports are taken."
)


@dataclass(frozen=True, slots=True)
class DriverAddress:
    """The address of a driver.

    Attributes:
        place: the name of an abstract socket of this machine, or an IP address and a port.
        key: a shared secret that authenticates both sides.
    """

    place: str | tuple[str, int]
    key: bytes


class ChannelClosed(Exception):
    """The peer has closed the channel."""


class DriverConnection:
    """One end of a connection that carries pickled messages in order.

    Attributes:
        is_on_this_machine: whether the peer is.

    Args:
        connected: a socket, which is closed with the channel.
    """

    def __init__(self, connected: socket.socket) -> None:
        self.is_on_this_machine = connected.family == socket.AF_UNIX
        self._connection: Connection = Connection(connected.detach())

    def send(self, message: Picklable) -> None:
        """Sends a message.

        Raises:
            ChannelClosed: the peer has closed the channel.
        """
        self.send_bytes(pickle.dumps(message, protocol=5))

    def send_bytes(self, data: bytes) -> None:
        """Sends a message that is pickled already; as `send`."""
        try:
            with deferred_interrupts():
                self._connection.send_bytes(data)
        except OSError as error:
            raise ChannelClosed from error

    def wait(self, until_s: float = math.inf) -> None:
        """Waits for the next message, interruptibly.

        Args:
            until_s: the deadline, by the monotonic clock.

        Raises:
            ChannelClosed: the peer has closed the channel.
            TimeoutError: no message has arrived.
        """
        try:
            while not self._connection.poll(_POLL_S):
                if time.monotonic() > until_s:
                    raise TimeoutError
        except OSError as error:
            raise ChannelClosed from error

    def has_come(self) -> bool:
        """Whether `receive` would not block: a message has arrived, or the peer has closed the channel."""
        try:
            return self._connection.poll()
        except OSError:
            return True

    def receive(self) -> Picklable:
        """Waits for the next message and returns it.

        Raises:
            ChannelClosed: the peer has closed the channel.
        """
        return pickle.loads(self.receive_bytes())

    def receive_bytes(self) -> bytes:
        """Returns the next message without unpickling it; as `receive`."""
        self.wait()
        try:
            with deferred_interrupts():
                return self._connection.recv_bytes()
        except (OSError, EOFError) as error:
            raise ChannelClosed from error

    def close(self) -> None:
        """Closes it; a second call has no effect."""
        self._connection.close()

    def _authenticate(self, key: bytes, is_driver: bool) -> None:
        """Makes both sides prove that they know the key.

        Raises:
            AuthenticationError: the peer does not.
        """
        if is_driver:
            deliver_challenge(self._connection, key)
            answer_challenge(self._connection, key)
        else:
            answer_challenge(self._connection, key)
            deliver_challenge(self._connection, key)


class DriverSocket:
    """The socket on which the driver waits for worker 0.

    Attributes:
        address: the one to which worker 0 connects.

    Args:
        address: this machine's IP address for a worker 0 on another one; None for a worker 0 on this machine.
        ports: the first and last port that may be used; None for any.

    Raises:
        LaunchError: none of the ports is free.
    """

    def __init__(self, address: str | None = None, ports: tuple[int, int] | None = None) -> None:
        place: str | tuple[str, int]
        if address is None:
            place = f"\0parallax-{secrets.token_hex(16)}"
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._socket.bind(place)
            self._socket.listen()
        else:
            self._socket = _listen(address, ports)
            place = address, self._socket.getsockname()[1]
        self.address = DriverAddress(place, secrets.token_bytes(32))
        self._socket.settimeout(_POLL_S)

    def accept(self, is_alive: Callable[[], bool]) -> DriverConnection | None:
        """Waits for the connection of worker 0 and returns it; None when the job is no longer alive."""
        while is_alive():
            with suppress(TimeoutError):
                connected, _ = self._socket.accept()
                _watch_peer(connected)
                copy, channel = connected.dup(), DriverConnection(connected)
                with copy, suppress(AuthenticationError, EOFError, OSError):
                    _limit_silence(copy, _PATIENCE_S)  # for an unauthenticated peer that sends nothing
                    channel._authenticate(self.address.key, is_driver=True)
                    _limit_silence(copy, 0)
                    return channel
                channel.close()
        return None

    def close(self) -> None:
        """Closes the listening socket."""
        self._socket.close()


def connect(address: DriverAddress) -> DriverConnection:
    """Connects worker 0 to its driver.

    Raises:
        LaunchError: no process listens there.
        AuthenticationError: the process that does is not the driver.
    """
    try:
        if isinstance(address.place, str):
            connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connected.connect(address.place)
        else:
            connected = socket.create_connection(address.place, _PATIENCE_S)
            connected.settimeout(None)
    except OSError as error:
        raise LaunchError(_NOT_REACHED.format(place=_text_of(address.place), reason=error)) from error
    _watch_peer(connected)
    channel = DriverConnection(connected)
    channel._authenticate(address.key, is_driver=False)
    return channel


def _listen(address: str, ports: tuple[int, int] | None) -> socket.socket:
    """Returns a socket that listens on a port of this machine."""
    reason = ""
    for port in range(ports[0], ports[1] + 1) if ports is not None else (0,):
        try:
            return socket.create_server((address, port), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
        except OSError as error:
            reason = str(error.strerror)
    span = f"a port from {ports[0]} to {ports[1]}" if ports is not None else "a port"
    raise LaunchError(_NO_PORT.format(span=span, own=address, reason=reason))


def _watch_peer(connected: socket.socket) -> None:
    """Makes messages to another machine leave at once, and detects a lost machine."""
    if connected.family == socket.AF_UNIX:
        return
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_S)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_S)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, (_PROBES + 1) * _PROBE_S * 1000)


def _text_of(place: str | tuple[str, int]) -> str:
    return "a socket of this machine" if isinstance(place, str) else f"{place[0]}, port {place[1]}"


def _limit_silence(connected: socket.socket, seconds: float) -> None:
    """Sets a timeout on reading from a socket; 0 for none."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", int(seconds), 0))


@contextmanager
def deferred_interrupts() -> Iterator[None]:
    """Context that defers Ctrl-C to its end: after half a message nothing on a channel could be read."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is None:
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came and callable(before):
            before(signal.SIGINT, None)
