"""The links of an emulated cluster: a bridge, and for each host a veth pair with a rate limit at both ends.

Links are lossless. Their queues hold everything that senders may have in flight (the windows are bounded, see init.py),
so nothing is dropped. A long queue only delays packets, and senders are set not to mistake a delay for a loss. The
interfaces' counters therefore equal the payload with its headers. Frames are large (9000 bytes), as in a data centre,
because each packet costs processor time. Segments are never merged into larger ones, which would hide headers and
exceed the rate.
"""

from __future__ import annotations

import subprocess

MTU = 9000
BRIDGE = "bridge"
SUBNET = "10.77.0.0/24"
BRIDGE_ADDRESS = "10.77.0.254"  # used only by the check of the links
MOST_HOSTS = 253

_NETWORK_BITS = 24

ETHERNET_BYTES = 14
_QUEUE_BYTES = 256 << 20
"""More than two hundred windows, for the connections that may wait for one host at the same time."""
_BURST_FRAMES = 4
_BURST_S = 0.004
"""Burst of a link above its rate; without one, a late timer on a busy machine would lower the rate."""
_PATIENCE = "2s"  # least retransmission timeout; seven windows take 0.3 s through a link of 200 Mbit/s


def burst_bytes(rate_bytes_per_s: int, mtu: int = MTU) -> int:
    """Returns the burst of a link above its rate."""
    return max(_BURST_FRAMES * (mtu + ETHERNET_BYTES), int(_BURST_S * rate_bytes_per_s))


def add_bridge(pid: int, mtu: int = MTU) -> None:
    """Makes the bridge in the network namespace of process `pid`."""
    _in(pid, "ip", "link", "add", BRIDGE, "mtu", str(mtu), "type", "bridge")
    _one_packet_at_a_time(pid, BRIDGE, mtu)
    _address(pid, BRIDGE, BRIDGE_ADDRESS)


def add_island(pid: int, bridge: str, rate_bytes_per_s: int, mtu: int = MTU) -> None:
    """Makes another bridge, and a veth pair with a rate limit between it and the first.

    Args:
        pid: of the process that holds the bridges' namespace.
        bridge: name of the new bridge.
        rate_bytes_per_s: rate limit of the pair, each way.
        mtu: of the bridge and the pair.
    """
    ends = f"{bridge}-out", f"{bridge}-in"
    _in(pid, "ip", "link", "add", bridge, "mtu", str(mtu), "type", "bridge")
    _in(pid, "ip", "link", "add", ends[0], "mtu", str(mtu), "type", "veth", "peer", "name", ends[1], "mtu", str(mtu))
    for name, master in zip(ends, (bridge, BRIDGE), strict=True):
        _one_packet_at_a_time(pid, name, mtu)
        _in(pid, "tc", "qdisc", "add", "dev", name, "root", *_bucket(rate_bytes_per_s, mtu))
        _in(pid, "ip", "link", "set", name, "master", master, "up")
    _one_packet_at_a_time(pid, bridge, mtu)
    _in(pid, "ip", "link", "set", bridge, "up")


def address(number: int) -> str:
    """Returns the IP address of a host, numbered from 0."""
    return f"10.77.0.{number + 1}"


def connect(
    pid: int,
    address: str,
    bridge_pid: int,
    port: str,
    rate_bytes_per_s: int | None,
    mtu: int = MTU,
    bridge: str = BRIDGE,
) -> None:
    """Connects a host to a bridge by a veth pair with a rate limit at both ends.

    Args:
        pid: a process of the host.
        address: the host's IP address.
        bridge_pid: a process of the bridge's namespace.
        port: name of the bridge's end.
        rate_bytes_per_s: rate limit, each way; None for no limit.
        mtu: of the pair, without Ethernet's header.
        bridge: name of the bridge.
    """
    peer = ("type", "veth", "peer", "name", port, "mtu", str(mtu), "netns", str(bridge_pid))
    _in(pid, "ip", "link", "add", "eth0", "mtu", str(mtu), *peer)
    for place, name in ((pid, "eth0"), (bridge_pid, port)):
        if rate_bytes_per_s is not None:
            _one_packet_at_a_time(place, name, mtu)
            _in(place, "tc", "qdisc", "add", "dev", name, "root", *_bucket(rate_bytes_per_s, mtu))
    _in(bridge_pid, "ip", "link", "set", port, "master", bridge, "up")
    _address(pid, "eth0", address)


def change_rate(pid: int, bridge_pid: int, port: str, rate_bytes_per_s: int, mtu: int = MTU) -> None:
    """Changes the rate limit at both ends of a rate-limited veth pair; packets in flight stay queued."""
    for place, name in ((pid, "eth0"), (bridge_pid, port)):
        _in(place, "tc", "qdisc", "change", "dev", name, "root", *_bucket(rate_bytes_per_s, mtu))


def _bucket(rate_bytes_per_s: int, mtu: int) -> tuple[str, ...]:
    rate = ("rate", f"{8 * rate_bytes_per_s}bit", "burst", str(burst_bytes(rate_bytes_per_s, mtu)))
    return ("tbf", *rate, "limit", str(_QUEUE_BYTES))


def _one_packet_at_a_time(pid: int, name: str, mtu: int) -> None:
    _in(pid, "ip", "link", "set", name, "gso_max_size", str(mtu), "gso_max_segs", "1")


def _address(pid: int, name: str, address: str) -> None:
    """Sets an interface's address and brings the interface up."""
    _in(pid, "ip", "address", "add", f"{address}/{_NETWORK_BITS}", "dev", name, "noprefixroute")
    _in(pid, "ip", "link", "set", name, "up")
    _in(pid, "ip", "route", "add", SUBNET, "dev", name, "src", address, "rto_min", _PATIENCE)


def _in(pid: int, *argv: str) -> None:
    """Runs a command in the network namespace of process `pid`."""
    done = subprocess.run(["nsenter", f"--net=/proc/{pid}/ns/net", *argv], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip()}")
