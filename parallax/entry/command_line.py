"""The command line of `parallax`: its commands, their options and descriptions."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from parallax.cluster.resource_file import parse_bandwidth
from parallax.runtime.worker.script import MODULE
from parallax.settings.arguments import CommandParser
from parallax.settings.merge import options_by_setting
from parallax.settings.options import CALIBRATE, CHECKPOINT, DIFF, DOCTOR, OF_SCRIPTS, RUN, SHOW, SIMULATE, positive

_DESCRIPTIONS = {
    "run": "Trains a script on all workers. Prints the plan, and the workers' output.",
    "plan": "Prints the plan of a script. Starts nothing, and ends a script that trains before calling "
    "parallax.parallel_run. Exit status 1: --memory finds too little.",
    "verify": "Trains N workers and one process, and compares every variable and slot.",
    "check": "Builds a script's graph twice, and prints what is refused or suspicious. Starts no workers.",
    "calibrate": "Measures hosts' links and collectives for a cluster profile. Nothing else should run there.",
    "doctor": "Checks a job's hosts and links, and prints problems and remedies. Exit status 1: a problem.",
    "profile": "Counts the rows that a script's steps touch, for a model profile. Trains nothing.",
    "show": "Prints a plan file.",
    "diff": "Prints how two plan files differ. Exit status 1: they differ.",
    "simulate": "Predicts step time, throughput, efficiency and memory of a script on other clusters. Starts nothing.",
    "setup": "Compiles the native libraries and Horovod after installing a wheel with the extra `build`.",
    "checkpoint": "Lists a folder's checkpoints, verifies them, exports one, or makes increments whole.",
    "completion": 'Prints a shell\'s completion script. For bash: `eval "$(parallax completion bash)"`.',
}
_SHELLS = ("bash", "zsh", "tcsh")
_FILES = ("FILE", ".json", "script")
_FOLDERS = ("DIR", "FOLDER")
_CHECKPOINT_DESCRIPTIONS = {
    "ls": "Lists a folder's checkpoints.",
    "verify": "Compares every byte of a folder's checkpoints with its checksum. Exit status 1: one is damaged.",
    "compact": "Writes a whole checkpoint of the latest one and its increments. No job may run.",
    "export": "Writes a SavedModel of a script's forward graph, with a checkpoint's values. "
    "With --plain, which needs no script, writes a checkpoint for plain TensorFlow.",
}


def command_parser() -> argparse.ArgumentParser:
    """The command line: all commands and their options."""
    parser = CommandParser(prog="parallax", description="Data-parallel training of TensorFlow graphs.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    made = {
        name: commands.add_parser(name, help=f"{text[0].lower()}{text[1:].partition('.')[0]}", description=text)
        for name, text in _DESCRIPTIONS.items()
    }
    for setting, options in options_by_setting().items():
        for option in options:
            for command in option.commands:
                option.add_to(_group(made[command], option.excludes) if option.excludes else made[command], setting)
    made[RUN].add_argument("--dry-run", action="store_true", help="only print the command")
    _of_calibrate(made[CALIBRATE])
    made[DOCTOR].add_argument("--ckpt-dir", metavar="DIR", help="also check a checkpoint folder")
    _of_simulate(made[SIMULATE])
    for command in OF_SCRIPTS:
        script = made[command].add_argument("script", help="the script, as it would be given to python")
        own = made[command].add_argument("args", nargs=argparse.REMAINDER, help="its arguments")
        made[command].add_argument(
            MODULE,
            action=_RunModule,
            replaced=(script, own),
            nargs=argparse.REMAINDER,
            dest=argparse.SUPPRESS,
            metavar="MODULE ARGS...",
            help="in place of SCRIPT",
        )
    made[SHOW].add_argument("plan", metavar="PLAN.json", help="of `parallax plan --json`")
    made[DIFF].add_argument("first", metavar="A.json", help="a plan file")
    made[DIFF].add_argument("second", metavar="B.json", help="another")
    _of_checkpoint(made[CHECKPOINT])
    made["completion"].add_argument("shell", choices=_SHELLS, help="the shell")
    return parser


def complete(shell: str) -> str:
    """Returns the completion script of the command line for a shell: `bash`, `zsh` or `tcsh`."""
    import shtab

    parser = command_parser()
    _complete_files(parser, shtab.FILE, shtab.DIRECTORY)
    return str(shtab.complete(parser, shell))


def _complete_files(parser: argparse.ArgumentParser, file: Any, folder: Any) -> None:
    """Makes shells complete the names of files and folders for arguments that are paths."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                _complete_files(command, file, folder)
        name = action.metavar if isinstance(action.metavar, str) else action.dest
        if name.endswith(_FILES):
            action.complete = file  # type: ignore[attr-defined]  # shtab reads it
        elif name.endswith(_FOLDERS):
            action.complete = folder  # type: ignore[attr-defined]


class _RunModule(argparse.Action):
    """Accepts `-m`, a module and its arguments instead of a script; the parser then serves no other command line."""

    def __init__(self, replaced: Sequence[argparse.Action], **keywords: Any) -> None:
        super().__init__(**keywords)
        self._replaced = replaced

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        """Stores the words in the form of `run_script`; a script is no longer required."""
        if not values:
            parser.error(f"argument {MODULE}: expected the name of a module")
        for positional in self._replaced:
            positional.required = False
        namespace.script, namespace.args = MODULE, values


def _group(parser: argparse.ArgumentParser, name: str) -> argparse._MutuallyExclusiveGroup:
    """The mutually exclusive group of a command's options; created on first use."""
    same_name = next((group for group in parser._mutually_exclusive_groups if group.title == name), None)
    if same_name is None:
        same_name = parser.add_mutually_exclusive_group()
        same_name.title = name
    return same_name


def _of_calibrate(calibrate: argparse.ArgumentParser) -> None:
    """Adds the options of `parallax calibrate` alone."""
    calibrate.add_argument("-o", "--output", required=True, metavar="FILE", help="profile to write")
    calibrate.add_argument("--quick", action="store_true", help="fewer sizes and rounds")
    calibrate.add_argument(
        "--from",
        dest="calibrations",
        action="append",
        default=[],
        metavar="FILE",
        help="measure nothing; derive the profile from other hosts'",
    )
    calibrate.add_argument("--share-cores", action="store_true", help="with --from: the hosts share cores as measured")


def _of_simulate(simulate: argparse.ArgumentParser) -> None:
    """Adds the options of `parallax simulate` alone."""
    simulate.add_argument("--hosts", type=_numbers, required=True, metavar="N,N,...", help="numbers, as 8,64,512")
    simulate.add_argument("--workers-per-host", type=positive, metavar="K", help="on every host")
    links = simulate.add_mutually_exclusive_group()
    links.add_argument("--link-rate", type=_rate, metavar="RATE", help="of every link, as 10gbit")
    links.add_argument("--scale-links", type=float, default=1.0, metavar="X", help="factor for measured rates")
    simulate.add_argument("--batch", type=float, default=1.0, metavar="X", help="factor for a worker's batch")
    simulate.add_argument("--vocabulary", type=float, default=1.0, metavar="X", help="factor for tables' rows")
    simulate.add_argument("--width", type=float, default=1.0, metavar="X", help="factor for rows' width")


def _of_checkpoint(checkpoint: argparse.ArgumentParser) -> None:
    """Adds the actions of `parallax checkpoint`."""
    actions = checkpoint.add_subparsers(dest="action", required=True, metavar="ACTION")
    made = {
        name: actions.add_parser(name, help=f"{text[0].lower()}{text[1:].partition('.')[0]}", description=text)
        for name, text in _CHECKPOINT_DESCRIPTIONS.items()
    }
    for name in ("ls", "verify", "compact"):
        made[name].add_argument("folder", metavar="FOLDER", help="of checkpoints")
    export = made["export"]
    for name, what, default in (
        ("input", "feed", " (default: the placeholders that outputs need)"),
        ("output", "fetch", ""),
    ):
        export.add_argument(
            f"--{name}",
            dest=f"{name}s",
            action="append",
            default=[],
            metavar="[NAME=]TENSOR",
            help=f"to {what}, as NAME in the signature{default}",
        )
    export.add_argument("--plain", action="store_true", help="write a checkpoint instead")
    export.add_argument("checkpoint", metavar="CHECKPOINT", help="a prefix, or a folder for its latest")
    export.add_argument("folder", metavar="FOLDER", help="empty or missing")
    export.add_argument("script", nargs="?", metavar="SCRIPT", help="the script, as it would be given to python")
    export.add_argument("args", nargs=argparse.REMAINDER, metavar="ARGS", help="its arguments")


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(sorted({positive(word.strip()) for word in text.split(",")}))


def _rate(text: str) -> int:
    rate = parse_bandwidth(text)
    if not rate:
        raise argparse.ArgumentTypeError(f"must be a rate in bits per second such as 10gbit or 200mbit, got {text!r}")
    return rate
