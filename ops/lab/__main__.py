"""An emulated cluster on this machine: `python -m ops.lab up`, `run`, `counters`, `resources`, `check`, `down`; `once`.

`up` starts a lab in the background, which runs until `down`. `once` runs a lab in the foreground for one command.
In a command, `{resource}` expands to the path of a resource file that lists the hosts, and `{folder}` to the path of a
folder that all hosts share. The exit status is the command's.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence

from ops.lab import holder, links
from ops.lab.check import TOLERANCE, LinkSpeed, measure
from ops.lab.hosts import Hosts
from ops.lab.lab import Lab
from ops.lab.rates import mbit, parse_host_rate, parse_rate
from parallax.settings.arguments import CommandParser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    arguments = _parser().parse_args(argv)
    try:
        if os.geteuid() != 0:
            raise holder.LabError("No lab can be made here: only root can make network namespaces.")
        return int(arguments.does(arguments))
    except (holder.LabError, ValueError) as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1


def _up(arguments: argparse.Namespace) -> int:
    shape = _shape(arguments)
    held, is_new = holder.up(arguments.name, shape)
    print(f"Lab {arguments.name!r} {'is up' if is_new else 'is up already'}: {shape}.", flush=True)
    return _check(arguments) if is_new and not arguments.no_check else 0


def _check(arguments: argparse.Namespace) -> int:
    held = holder.find(arguments.name)
    for speed in measure(held.hosts, held.shape.mtu):
        print(_line(speed), flush=True)
    return 0


def _run(arguments: argparse.Namespace) -> int:
    held = holder.find(arguments.name)
    try:
        words = held.hosts.argv_on(arguments.host, _filled(arguments.command, held.hosts, held.shape.workers))
    except KeyError:
        first, last = held.hosts.hosts[0].name, held.hosts.hosts[-1].name
        raise holder.LabError(f"Hosts are called {first} to {last}; received {arguments.host!r}.") from None
    sys.stdout.flush()
    os.execvp(words[0], words)


def _counters(arguments: argparse.Namespace) -> int:
    for name, (received, sent) in holder.find(arguments.name).hosts.counters().items():
        print(f"{name}: received {received:,} bytes, sent {sent:,}")
    return 0


def _resources(arguments: argparse.Namespace) -> int:
    held = holder.find(arguments.name)
    file = held.hosts.resource_file(arguments.workers or held.shape.workers)
    print(file if arguments.path else file.read_text().rstrip())
    return 0


def _down(arguments: argparse.Namespace) -> int:
    print(f"Lab {arguments.name!r} {'is down' if holder.down(arguments.name) else 'was not up'}.")
    return 0


def _once(arguments: argparse.Namespace) -> int:
    shape = _shape(arguments)
    rates = {f"host{number}": rate for number, rate in enumerate(shape.rates)}
    with Lab(shape.hosts, host_rates=rates, mtu=shape.mtu) as lab:
        before = lab.counters()
        status = lab.run_on("host0", _filled(arguments.command, lab, shape.workers)).returncode
        for name, (received, sent) in lab.counters().items():
            print(f"{name}: received {received - before[name][0]:,} bytes, sent {sent - before[name][1]:,}")
    return status if status >= 0 else 128 - status


def _shape(arguments: argparse.Namespace) -> holder.Shape:
    """Returns the requested shape; ValueError if `Lab` rejects it."""
    own: Mapping[str, int] = dict(arguments.host_rate)
    names = Lab(arguments.hosts, arguments.rate, own, arguments.mtu).names
    rates = tuple(own.get(name, arguments.rate) for name in names)
    return holder.Shape(arguments.hosts, arguments.workers, rates, arguments.mtu)


def _filled(command: Sequence[str], hosts: Hosts, workers: int) -> list[str]:
    places = {"{resource}": str(hosts.resource_file(workers)), "{folder}": str(hosts.folder)}
    return [re.sub(r"\{resource\}|\{folder\}", lambda found: places[found[0]], word) for word in command]


def _line(speed: LinkSpeed) -> str:
    """Formats a host's configured and measured rates, with a warning if they differ."""
    asked = "unlimited" if speed.asked is None else mbit(speed.asked)
    warning = f"  WARNING: more than {TOLERANCE:.0%} off" if speed.is_off else ""
    sent, received = (8 * rate / 1e6 for rate in (speed.sent, speed.received))
    return f"{speed.name}: configured {asked}, sends {sent:.1f}mbit, receives {received:.1f}mbit{warning}"


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(prog="python -m ops.lab", description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, does: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(does=does)
        if does is not _once:
            sub.add_argument("--name", type=_name, default="lab", help="name of the background lab (lab)")
        return sub

    up = command("up", _up, "bring a lab up in the background and measure its links")
    up.add_argument("--no-check", action="store_true", help="do not measure the links")
    once = command("once", _once, "start a lab, run a command on host0, print each host's bytes, take the lab down")
    for sub in (up, once):
        _add_shape(sub)
    once.add_argument("command", nargs="+", help="after --")
    run = command("run", _run, "run a command on a host")
    run.add_argument("host")
    run.add_argument("command", nargs="+", help="after --")
    command("counters", _counters, "print the bytes that each host has received and sent since the lab came up")
    resources = command("resources", _resources, "print a resource file that lists the hosts")
    resources.add_argument("--workers", type=_number, metavar="N", help="workers on each host (default: those of `up`)")
    resources.add_argument("--path", action="store_true", help="print the file's path instead of its text")
    command("check", _check, "measure the links")
    command("down", _down, "take a lab down, whatever its state")
    return parser


def _add_shape(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--hosts", type=_number, default=2, metavar="N", help="number of emulated hosts (2)")
    parser.add_argument("--workers", type=_number, default=1, metavar="N", help="workers on each host (1)")
    parser.add_argument("--rate", type=_told(parse_rate), help="rate limit of each link, each way: 200mbit, 25MB")
    own = parser.add_argument("--host-rate", type=_told(parse_host_rate), nargs="+", action="extend", default=[])
    own.metavar, own.help = "HOST=RATE", "rate limit of one host's link: host3=50mbit"
    parser.add_argument("--mtu", type=_number, default=links.MTU, metavar="BYTES", help=f"of the links ({links.MTU})")


def _told(parse: Callable[[str], object]) -> Callable[[str], object]:
    """Wraps a parser so that argparse prints its errors."""

    def parsed(text: str) -> object:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return parsed


def _number(text: str) -> int:
    if not re.fullmatch("[1-9][0-9]{0,5}", text):
        raise argparse.ArgumentTypeError(f"a number must be from 1 to 999999; received {text!r}")
    return int(text)


def _name(text: str) -> str:
    if not re.fullmatch("[a-z0-9][a-z0-9-]{0,39}", text):
        raise argparse.ArgumentTypeError(f"a name has up to 40 lowercase letters, digits and dashes; received {text!r}")
    return text


if __name__ == "__main__":
    sys.exit(main())
