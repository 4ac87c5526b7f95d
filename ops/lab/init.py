"""The first process of an emulated host: gives it its name, and waits for orphans until it is killed.

`python -I -S init.py NAME HOSTS_FILE`
"""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

OWN_FOLDERS = ("/dev/shm", "/var/tmp")  # each host has its own; TMPDIR is the second (hosts.py)
_SETTINGS = {
    # Windows are bounded, so that the queues of the links can hold them all: see links.py.
    "ipv4/tcp_rmem": ("4096 131072 1048576",),
    "ipv4/tcp_wmem": ("4096 131072 1048576",),
    # The first that may be used here. The machine's own may be one that sends more than the link carries, as bbr does.
    "ipv4/tcp_congestion_control": ("cubic", "reno"),
    # No probe for a lost tail: it sends again what only waits in a queue.
    "ipv4/tcp_early_retrans": ("0",),
    # Processors of this machine may change the order of packets, which is no loss either.
    "ipv4/tcp_max_reordering": ("1000",),
    "ipv4/tcp_reordering": ("300",),
    "ipv4/tcp_recovery": ("0",),
    # No connection begins with what an earlier one has learnt.
    "ipv4/tcp_no_metrics_save": ("1",),
    # The interfaces made from now on say nothing of their own accord.
    "ipv6/conf/default/disable_ipv6": ("1", ""),
}
"""Network settings of a host and of the bridge: file -> values, of which the first that the kernel takes holds; "" is
for none."""


def main() -> None:
    """Makes the host ready, says so, and stays."""
    name, hosts = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if name != "bridge":
        socket.sethostname(name)
        subprocess.run(["mount", "--bind", hosts, "/etc/hosts"], check=True)
        for folder in OWN_FOLDERS:
            subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], check=True)
    for file, values in _SETTINGS.items():
        _set(Path("/proc/sys/net") / file, values)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            time.sleep(0.05)


def _set(file: Path, values: tuple[str, ...]) -> None:
    for value in values:
        try:
            if value:
                file.write_text(value)
            return
        except OSError as error:
            refused = error
    raise RuntimeError(f"{file} takes none of {', '.join(values)}: {refused}")


if __name__ == "__main__":
    main()
