"""The first process of an emulated host: sets the host up, and reaps orphans until it is killed.

`python -I -S init.py NAME HOSTS_FILE`
"""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

OWN_FOLDERS = ("/dev/shm", "/var/tmp")  # private to each host; TMPDIR is the second (hosts.py)
_SETTINGS = {
    # Bound the windows, so that the queues of the links can hold all of them: see links.py.
    "ipv4/tcp_rmem": ("4096 131072 1048576",),
    "ipv4/tcp_wmem": ("4096 131072 1048576",),
    # The first one available. The machine's default may send more than the link carries, as bbr does.
    "ipv4/tcp_congestion_control": ("cubic", "reno"),
    # No tail loss probes: they resend segments that are only waiting in a queue.
    "ipv4/tcp_early_retrans": ("0",),
    # This machine's processors may reorder packets, which is no loss either.
    "ipv4/tcp_max_reordering": ("1000",),
    "ipv4/tcp_reordering": ("300",),
    "ipv4/tcp_recovery": ("0",),
    # No connection starts with the metrics of an earlier one.
    "ipv4/tcp_no_metrics_save": ("1",),
    # Interfaces made from now on send no packets of their own accord.
    "ipv6/conf/default/disable_ipv6": ("1", ""),
}
"""Network settings of hosts and the bridge: file -> values, of which the first that the kernel accepts is set; "" sets
nothing."""


def main() -> None:
    """Sets up the host, prints `ready`, and reaps orphans for ever."""
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
    raise RuntimeError(f"{file} accepts none of {', '.join(values)}: {refused}")


if __name__ == "__main__":
    main()
