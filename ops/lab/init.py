"""The first process of an emulated host: gives it its name, and waits for orphans until it is killed.

`python -I -S init.py NAME HOSTS_FILE`
"""

import os
import signal
import socket
import subprocess
import sys
import time


def main() -> None:
    """Makes the host ready, says so, and stays."""
    name, hosts = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if name != "bridge":
        socket.sethostname(name)
        subprocess.run(["mount", "--bind", hosts, "/etc/hosts"], check=True)
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/dev/shm"], check=True)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            time.sleep(0.05)


if __name__ == "__main__":
    main()
