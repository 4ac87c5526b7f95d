"""One end of a measured transfer; run as `python -I -S probe.py` on a host or at the bridge.

`receive ADDRESS SKIPPED COUNTED` prints its port, accepts one connection, and prints the number of bytes received after
the first SKIPPED ones and the seconds they took. `send ADDRESS PORT BYTES` sends.
"""

import socket
import sys
import time

_CHUNK_BYTES = 1 << 18
_LIMIT_S = 30.0


def receive(address: str, skipped: int, counted: int) -> None:
    """Receives `skipped + counted` bytes; those that arrive with the last skipped one are not counted."""
    buffer = bytearray(_CHUNK_BYTES)
    with socket.create_server((address, 0)) as server:
        server.settimeout(_LIMIT_S)
        sys.stdout.write(f"{server.getsockname()[1]}\n")
        sys.stdout.flush()
        connection, _ = server.accept()
    begun = None
    received = 0
    with connection:
        connection.settimeout(_LIMIT_S)
        while received < skipped + counted:
            size = connection.recv_into(buffer)
            if not size:
                sys.exit("the sender has ended too early")
            received += size
            if begun is None and received >= skipped:
                begun = (received, time.monotonic())
        ended_s = time.monotonic()
    if begun is None:
        sys.exit("nothing was counted")
    sys.stdout.write(f"{received - begun[0]} {ended_s - begun[1]}\n")


def send(address: str, port: int, size: int) -> None:
    """Sends `size` bytes."""
    chunk = bytes(_CHUNK_BYTES)
    with socket.create_connection((address, port), timeout=_LIMIT_S) as connection:
        while size:
            size -= connection.send(chunk[:size])
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)  # until the receiver has everything


if __name__ == "__main__":
    role, place, *numbers = sys.argv[1:]
    {"receive": receive, "send": send}[role](place, int(numbers[0]), int(numbers[1]))
