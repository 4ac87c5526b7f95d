"""What a stranger does at the ports of a job: finds them, and writes what is no protocol's.

`python -m tests.fences.strangers ADDRESS:PORT...` does it as a process of its own, and prints what came back.
"""

import contextlib
import random
import socket
import sys
import time
from pathlib import Path
from typing import NamedTuple

from ops.lab.hosts import in_digits

ANSWER_S = 2.0  # a rank that is not in MPI looks at nothing
_LISTEN = "0A"  # the state in /proc/net/tcp


class Port(NamedTuple):
    """A TCP port on which a process listens; an IPv4 address is never in its mapped form."""

    pid: int
    address: str
    number: int


def ports_of(pids):
    """The TCP ports on which some of these processes listen."""
    holder = {}
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile
                holder[str(link.readlink())] = pid
    found = []
    for kind in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]:
            words = line.split()
            pid = holder.get(f"socket:[{words[9]}]")
            if words[3] == _LISTEN and pid is not None:
                address, number = words[1].split(":")
                found.append(Port(pid, in_digits(address), int(number, 16)))
    return sorted(found)


GARBAGE = (
    bytes(8),
    b"\xff" * 4096,
    random.Random(1).randbytes(100_000),
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET / HTTP/1.1\r\n\r\n",
    bytes.fromhex("16030100c8010000c40303") + random.Random(2).randbytes(64),  # half of what TLS begins with
)


def trouble(places, idle=20, answer_s=ANSWER_S):
    """Writes garbage to ports, while on each of them `idle` connections are open that say nothing.

    Args:
        places: (address, port) of each.
        idle: how many.
        answer_s: how long answers are waited for.

    Returns:
        Bytes that came back, of all connections, and all connections, which are still open.
    """
    silent = [socket.create_connection(place, 5) for place in places for _ in range(idle)]
    loud = [socket.create_connection(place, 5) for place in places for _ in GARBAGE]
    for number, one in enumerate(loud):
        with contextlib.suppress(OSError):  # closed by the other side, or as much as it takes
            one.settimeout(1)
            one.sendall(GARBAGE[number % len(GARBAGE)])
    answers, until_s = b"", time.monotonic() + answer_s
    for one in loud:
        with contextlib.suppress(OSError):
            one.settimeout(max(until_s - time.monotonic(), 0.001))
            answers += one.recv(1 << 16)
    return answers, [*silent, *loud]


def trouble_at_once(pids, known):
    """Troubles the ports that some processes have opened lately, most likely before those who are awaited there.

    Args:
        pids: of the processes.
        known: ports that were troubled before; new ones are added.

    Returns:
        As `trouble`.
    """
    with contextlib.suppress(OSError):  # one has ended
        new = [port for port in ports_of(pids) if port not in known]
        known.update(new)
        return trouble([(port.address, port.number) for port in new], idle=5, answer_s=0.1)
    return b"", []


def main():
    """Visits all ports at once."""
    places = [word.rpartition(":") for word in sys.argv[1:]]
    answers, connections = trouble([(address, int(port)) for address, _, port in places])
    print(answers)
    for one in connections:
        one.close()


if __name__ == "__main__":
    main()
