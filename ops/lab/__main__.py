"""`python -m ops.lab --hosts 2 -- parallax run -r {resource} train.py`: a command on host0 of an emulated cluster.

`{resource}` becomes the path of a resource file of the hosts, `{folder}` that of a folder that all of them see. At the
end the bytes that each host received and sent are printed. The exit status is the command's.
"""

from __future__ import annotations

import argparse
import sys

from ops.lab.lab import Lab


def main() -> int:
    """Makes the lab, runs the command, takes the lab down."""
    parser = argparse.ArgumentParser(prog="python -m ops.lab", description=__doc__.partition("\n")[0])
    parser.add_argument("--hosts", type=int, default=2, metavar="N", help="emulated hosts (2)")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="workers on each host (1)")
    parser.add_argument("--rate", type=int, metavar="BYTES", help="bytes a second that each link carries each way")
    parser.add_argument("command", nargs="+", help="what to run on host0, after --")
    arguments = parser.parse_args()
    with Lab(arguments.hosts, arguments.rate) as lab:
        places = {"{resource}": str(lab.resource_file(arguments.workers)), "{folder}": str(lab.folder)}
        argv = [_filled(word, places) for word in arguments.command]
        before = lab.counters()
        status = lab.run_on("host0", argv).returncode
        for name, (received, sent) in lab.counters().items():
            print(f"{name}: received {received - before[name][0]:,} bytes, sent {sent - before[name][1]:,}")
    return status if status >= 0 else 128 - status


def _filled(word: str, places: dict[str, str]) -> str:
    for name, value in places.items():
        word = word.replace(name, value)
    return word


if __name__ == "__main__":
    sys.exit(main())
