"""Measures the links of an emulated cluster, each way: do they carry the rates that were asked for?

Each host sends to the bridge and receives from it, where there is no rate but that of its own link. Some hosts are
measured at once, as many as an ordinary machine carries. A link whose rate is off is measured again alone: a busy
moment of the machine is not the link's fault.
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
_HEADER_BYTES = 52  # of IP and TCP with time stamps, in each frame


@dataclass(frozen=True, slots=True)
class LinkSpeed:
    """What a host's link carries in bytes a second, Ethernet's headers among them.

    Args:
        name: of the host.
        asked: each way; None for as much as the machine can.
        sent: measured, from the host.
        received: measured, to the host.
    """

    name: str
    asked: int | None
    sent: float
    received: float

    @property
    def is_off(self) -> bool:
        """One way is not within `TOLERANCE` of what was asked for."""
        return self.asked is not None and max(_error(self.sent, self.asked), _error(self.received, self.asked)) > (
            TOLERANCE
        )


def measure(lab: Hosts, mtu: int) -> tuple[LinkSpeed, ...]:
    """The speeds of all links, in the order of the hosts.

    Raises:
        RuntimeError: a transfer has failed.
    """
    speeds = [speed for group in _groups(lab.hosts) for speed in _speeds(lab, group, mtu)]
    host_by_name = {host.name: host for host in lab.hosts}
    return tuple(_again(lab, host_by_name[one.name], one, mtu) if one.is_off else one for one in speeds)


def _groups(hosts: Sequence[EmulatedHost]) -> Iterator[tuple[EmulatedHost, ...]]:
    """Hosts that are measured at once: each group within a rate in total, or a single host."""
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
    """Each way the measured rate that is nearer to the one asked for."""
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
    """Bytes a second of a transfer for each host of the group, all at once."""
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
    """Bytes of a transfer that are not counted, as the link may let them through at once, and that are."""
    if rate_bytes_per_s is None:
        return _UNLIMITED_BYTES // 10, _UNLIMITED_BYTES
    skipped = 3 * links.burst_bytes(rate_bytes_per_s, mtu)  # a burst at each end, and one for the queue to be there
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
        raise RuntimeError(f"The link of {host.name} took more than {_LIMIT_S:.0f} s for a transfer.") from error
    if receiver.returncode or len(words) != 2:
        raise RuntimeError(f"A transfer through the link of {host.name} has failed: see above.")
    size, seconds = int(words[0]), float(words[1])
    return size * (mtu + links.ETHERNET_BYTES) / (mtu - _HEADER_BYTES) / seconds


def _error(measured: float, asked: float) -> float:
    return abs(measured / asked - 1)
