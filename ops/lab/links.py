"""The cables of an emulated cluster: a bridge, and for each host a pair of interfaces with its rate at both ends.

Links are lossless. Their queues hold all that senders may have on its way (the windows are bounded, see init.py), so
nothing is dropped, and since a long queue only delays, no sender may take a delay for a loss. The bytes that interfaces
count are then the payload with its headers. Frames are large (9000 bytes), as a data centre's, because the machine pays
for each packet; segments are never put together to larger ones, which would hide headers and pass the rate.
"""

from __future__ import annotations

import subprocess

MTU = 9000
BRIDGE = "bridge"
SUBNET = "10.77.0.0/24"
BRIDGE_ADDRESS = "10.77.0.254"  # at which nobody is but the check of the links
MOST_HOSTS = 253

_NETWORK_BITS = 24

ETHERNET_BYTES = 14
_QUEUE_BYTES = 256 << 20
"""Two hundred windows and more: connections that may wait for one host at the same time."""
_BURST_FRAMES = 4
_BURST_S = 0.004
"""What a link may let through at once above its rate, else a late timer of a busy machine would cost rate."""
_PATIENCE = "2s"  # retransmit no earlier; seven windows take 0.3 s through a link of 200 Mbit/s


def burst_bytes(rate_bytes_per_s: int, mtu: int = MTU) -> int:
    """What a link lets through at once above its rate."""
    return max(_BURST_FRAMES * (mtu + ETHERNET_BYTES), int(_BURST_S * rate_bytes_per_s))


def add_bridge(pid: int, mtu: int = MTU) -> None:
    """Makes the bridge in the network namespace of process `pid`."""
    _in(pid, "ip", "link", "add", BRIDGE, "mtu", str(mtu), "type", "bridge")
    _one_packet_at_a_time(pid, BRIDGE, mtu)
    _address(pid, BRIDGE, BRIDGE_ADDRESS)


def add_island(pid: int, bridge: str, rate_bytes_per_s: int, mtu: int = MTU) -> None:
    """Makes another bridge beside the first, with a cable between the two that carries a rate each way.

    Args:
        pid: of the process that holds the bridges' namespace.
        bridge: what it is called.
        rate_bytes_per_s: of the cable.
        mtu: of its frames.
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
    """The address of a host, counted from 0."""
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
    """A cable from a host to the bridge; the rate holds at both its ends.

    Args:
        pid: a process of the host.
        address: the host's.
        bridge_pid: a process of the bridge's namespace.
        port: what the bridge's end is called.
        rate_bytes_per_s: what the cable carries each way; None for as much as the machine can.
        mtu: of its frames, without Ethernet's header.
        bridge: where it leads.
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
    """Gives a cable that has a rate another one, at both its ends; what is on its way stays on it."""
    for place, name in ((pid, "eth0"), (bridge_pid, port)):
        _in(place, "tc", "qdisc", "change", "dev", name, "root", *_bucket(rate_bytes_per_s, mtu))


def _bucket(rate_bytes_per_s: int, mtu: int) -> tuple[str, ...]:
    rate = ("rate", f"{8 * rate_bytes_per_s}bit", "burst", str(burst_bytes(rate_bytes_per_s, mtu)))
    return ("tbf", *rate, "limit", str(_QUEUE_BYTES))


def _one_packet_at_a_time(pid: int, name: str, mtu: int) -> None:
    _in(pid, "ip", "link", "set", name, "gso_max_size", str(mtu), "gso_max_segs", "1")


def _address(pid: int, name: str, address: str) -> None:
    """Gives an interface its address and takes it up."""
    _in(pid, "ip", "address", "add", f"{address}/{_NETWORK_BITS}", "dev", name, "noprefixroute")
    _in(pid, "ip", "link", "set", name, "up")
    _in(pid, "ip", "route", "add", SUBNET, "dev", name, "src", address, "rto_min", _PATIENCE)


def _in(pid: int, *argv: str) -> None:
    """Runs a command in the network namespace of process `pid`."""
    done = subprocess.run(["nsenter", f"--net=/proc/{pid}/ns/net", *argv], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip()}")
