"""Measures whether the links of an emulated cluster carry their configured rates, each way.

Each host sends to the bridge and receives from it; its own link is the only rate limit on that path. Hosts are measured
in groups, as large as an ordinary machine can carry. A link whose rate is off is measured again alone, because the
machine may have been busy for a moment.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ops.lab import links
from ops.lab.hosts import EmulatedHost, Hosts

TOLERANCE = 0.05

_PROBE = str(Path(__file__).resolve().parent / "probe.py")
_COUNTED_S = 0.6
_LEAST_FRAMES = 20
_UNLIMITED_BYTES = 100_000_000
_AT_ONCE_BYTES_PER_S = 100_000_000
_LIMIT_S = 60.0
_HEADER_BYTES = 52  # IP and TCP headers with timestamps, in each frame


@dataclass(frozen=True, slots=True)
class LinkSpeed:
    """The speed of a host's link in bytes per second, Ethernet headers included.

    Args:
        name: the host's name.
        asked: configured rate, each way; None for no limit.
        sent: measured rate from the host.
        received: measured rate to the host.
    """

    name: str
    asked: int | None
    sent: float
    received: float

    @property
    def is_off(self) -> bool:
        """Whether the measured rate differs from the configured one by more than `TOLERANCE` in either direction."""
        return self.asked is not None and max(_error(self.sent, self.asked), _error(self.received, self.asked)) > (
            TOLERANCE
        )


def measure(lab: Hosts, mtu: int) -> tuple[LinkSpeed, ...]:
    """Measures all links; returns their speeds in the order of the hosts.

    Raises:
        RuntimeError: a transfer failed.
    """
    speeds = [speed for group in _groups(lab.hosts) for speed in _speeds(lab, group, mtu)]
    host_by_name = {host.name: host for host in lab.hosts}
    return tuple(_again(lab, host_by_name[one.name], one, mtu) if one.is_off else one for one in speeds)


def _groups(hosts: Sequence[EmulatedHost]) -> Iterator[tuple[EmulatedHost, ...]]:
    """Yields the groups of hosts that are measured together: each within a total rate, or a single host."""
    group: list[EmulatedHost] = []
    total = 0
    for host in hosts:
        rate = host.rate_bytes_per_s or _AT_ONCE_BYTES_PER_S
        if group and total + rate > _AT_ONCE_BYTES_PER_S:
            yield tuple(group)
            group, total = [], 0
        group.append(host)
        total += rate
    yield tuple(group)


def _again(lab: Hosts, host: EmulatedHost, first: LinkSpeed, mtu: int) -> LinkSpeed:
    """Measures a link again; keeps for each direction the rate nearer to the configured one."""
    second = _speeds(lab, (host,), mtu)[0]
    asked = first.asked or 0
    sent = min(first.sent, second.sent, key=lambda rate: _error(rate, asked))
    received = min(first.received, second.received, key=lambda rate: _error(rate, asked))
    return replace(first, sent=sent, received=received)


def _speeds(lab: Hosts, group: Sequence[EmulatedHost], mtu: int) -> list[LinkSpeed]:
    sent = _transfers(lab, group, mtu, to_bridge=True)
    received = _transfers(lab, group, mtu, to_bridge=False)
    return [
        LinkSpeed(host.name, host.rate_bytes_per_s, one, other)
        for host, one, other in zip(group, sent, received, strict=True)
    ]


def _transfers(lab: Hosts, group: Sequence[EmulatedHost], mtu: int, to_bridge: bool) -> list[float]:
    """Runs one transfer for each host of the group, all at once; returns their bytes per second."""
    python = (sys.executable, "-I", "-S", _PROBE)
    with contextlib.ExitStack() as ends:
        receivers = []
        for host in group:
            skipped, counted = _sizes(host.rate_bytes_per_s, mtu)
            address = links.BRIDGE_ADDRESS if to_bridge else host.address
            argv = [*python, "receive", address, str(skipped), str(counted)]
            argv = lab.argv_on_bridge(argv) if to_bridge else lab.argv_on(host.name, argv)
            receivers.append(_started(argv, ends))
        for host, receiver in zip(group, receivers, strict=True):
            address = links.BRIDGE_ADDRESS if to_bridge else host.address
            size = sum(_sizes(host.rate_bytes_per_s, mtu))
            assert receiver.stdout is not None  # a pipe
            argv = [*python, "send", address, receiver.stdout.readline().strip(), str(size)]
            _started(lab.argv_on(host.name, argv) if to_bridge else lab.argv_on_bridge(argv), ends)
        return [_rate(receiver, host, mtu) for host, receiver in zip(group, receivers, strict=True)]


def _sizes(rate_bytes_per_s: int | None, mtu: int) -> tuple[int, int]:
    """Returns the uncounted bytes of a transfer, which the link may pass in a burst, and the counted ones."""
    if rate_bytes_per_s is None:
        return _UNLIMITED_BYTES // 10, _UNLIMITED_BYTES
    skipped = 3 * links.burst_bytes(rate_bytes_per_s, mtu)  # a burst at each end, and one to build up the queue
    return skipped, max(int(_COUNTED_S * rate_bytes_per_s), _LEAST_FRAMES * mtu)


def _started(argv: list[str], ends: contextlib.ExitStack) -> subprocess.Popen[str]:
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    ends.enter_context(process)
    ends.callback(process.kill)
    return process


def _rate(receiver: subprocess.Popen[str], host: EmulatedHost, mtu: int) -> float:
    try:
        words = receiver.communicate(timeout=_LIMIT_S)[0].split()
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"A transfer through the link of {host.name} took more than {_LIMIT_S:.0f} s.") from error
    if receiver.returncode or len(words) != 2:
        raise RuntimeError(f"A transfer through the link of {host.name} failed: see above.")
    size, seconds = int(words[0]), float(words[1])
    return size * (mtu + links.ETHERNET_BYTES) / (mtu - _HEADER_BYTES) / seconds


def _error(measured: float, asked: float) -> float:
    return abs(measured / asked - 1)
