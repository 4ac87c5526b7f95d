"""The command `parallax`: run a script, profile and verify it; show, compare and simulate its plans."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parallax.cluster.resource_file import parse_bandwidth
from parallax.errors import ConfigError, ParallaxError
from parallax.plans.plan import read_plan
from parallax.plans.what_if import WhatIf
from parallax.profiles.plan_inputs import file_text
from parallax.profiles.profiles import cluster_profile_from_json
from parallax.report.html.files import write_file
from parallax.report.text import explanation, plan_table
from parallax.runtime.check.builds import SecondBuild, second_build
from parallax.runtime.supervisor.framework_log import join_deprecations, quiet_import
from parallax.runtime.trace.options import trace_options
from parallax.runtime.worker.local_training import local_training_noticed
from parallax.runtime.worker.random_state import AlikeUntilBuilt, drawn_seed
from parallax.runtime.worker.script import error_text, run_script
from parallax.settings.environment import (
    MIN_LOG_LEVEL,
    Role,
    Settings,
    applied,
    framework_level,
    set_defaults,
    with_equal_hashes,
)
from parallax.settings.merged import options_by_setting
from parallax.settings.options import CALIBRATE, CHECKPOINT, DIFF, DOCTOR, OF_SCRIPTS, RUN, SHOW, SIMULATE, positive
from parallax.strict import shown

if TYPE_CHECKING:
    from parallax.api import JobEnded

EXIT_USAGE = 2

_DESCRIPTIONS = {
    "run": "Runs a script that calls parallax.parallel_run on all workers. Prints the plan, relays what the workers "
    "print, each line with its rank, and ends with the exit status of the job.",
    "plan": "Prints the plan of a script's graph. Starts nothing, and ends a script that trains by itself before it "
    "calls parallax.parallel_run. The exit status is 1 when --memory finds too little memory, else 0.",
    "verify": "Compares N workers with one process on the joined batch. Both take some steps; for every variable and "
    "slot it is printed whether each worker has what the one process has. All draw the same random numbers; what is "
    "drawn for the rows of a batch (dropout) the one process takes from the workers.",
    "check": "Says what of a script would be refused, and what is suspicious. Builds its graph in two processes, "
    "compares and plans it. Starts no workers. The exit status is 1 when a run would be refused, else 0.",
    "calibrate": "Measures the cluster and writes its profile. It runs a job that times all-reduce, all-to-all, "
    "allgather and a server between the hosts and within one, and each host's link. Nothing else should run there.",
    "doctor": "Looks at the hosts of a job. Says which cannot be reached, have other versions or too little room, "
    "ports or files, or a clock that is off, and what to do; measures the links of several hosts. The exit status is 1 "
    "when anything is wrong, else 0.",
    "profile": "Measures which rows the steps of a script touch and writes a model profile. Looks at batches, trains "
    "nothing and starts no job.",
    "show": "Prints a plan file.",
    "diff": "Prints in what two plan files differ. The exit status is 0 when in nothing, else 1.",
    "simulate": "Predicts a script's graph on clusters of other sizes. Prints step time, throughput, efficiency and "
    "memory of each, and where routes change. Starts nothing.",
    "checkpoint": "Lists a folder's checkpoints, verifies them, exports one, or makes increments whole.",
}
_CHECKPOINT_DESCRIPTIONS = {
    "ls": "Prints a line for each checkpoint of a folder.",
    "verify": "Compares every byte of a folder's checkpoints with the stored checksums. The exit status is 1 when one "
    "is damaged.",
    "compact": "Writes a whole checkpoint of the latest one and the increments that follow it. No job may run.",
    "export": "Writes a SavedModel of the forward part of a script's graph, with the values of a checkpoint. Plain "
    "TensorFlow loads it. With --plain, writes a checkpoint for plain TensorFlow, for which no script is needed.",
}


def main(argv: list[str] | None = None) -> None:
    """Runs the command line and leaves with its exit status."""
    arguments = command_parser().parse_args(argv)
    environment = with_equal_hashes()
    if argv is None and environment is not None and "script" in arguments:  # nothing but Python is there yet
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
    by_command = {"show": _show_plan, "diff": _compare_plans, "calibrate": _calibrate, "checkpoint": _checkpoint}
    by_command["doctor"] = _doctor
    try:
        status = by_command.get(arguments.command, _run_script)(arguments)
    except ParallaxError as error:
        _say("\n".join(map(shown, f"parallax: {error}".split("\n"))))  # it may have names from files
        status = EXIT_USAGE if arguments.command == "diff" else 1  # of diff, 1 says that plans differ
    sys.exit(status)


def command_parser() -> argparse.ArgumentParser:
    """The command line: all commands and their options."""
    parser = argparse.ArgumentParser(prog="parallax", description="Data-parallel training of TensorFlow graphs.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    made = {
        name: commands.add_parser(name, help=f"{text[0].lower()}{text[1:].partition('.')[0]}", description=text)
        for name, text in _DESCRIPTIONS.items()
    }
    for setting, options in options_by_setting().items():
        for option in options:
            for command in option.commands:
                option.add_to(_group(made[command], option.excludes) if option.excludes else made[command], setting)
    made[RUN].add_argument(
        "--dry-run", action="store_true", help="print the command that would start the job; start nothing"
    )
    _of_calibrate(made[CALIBRATE])
    made[DOCTOR].add_argument("--ckpt-dir", metavar="DIR", help="a folder for checkpoints on worker 0's host")
    _of_simulate(made[SIMULATE])
    for command in OF_SCRIPTS:
        made[command].add_argument("script", help="the script, as it would be given to python")
        made[command].add_argument("args", nargs=argparse.REMAINDER, help="its arguments")
    made[SHOW].add_argument("plan", metavar="PLAN.json", help="as `parallax plan --json` wrote it")
    made[DIFF].add_argument("first", metavar="A.json", help="a plan file")
    made[DIFF].add_argument("second", metavar="B.json", help="another")
    _of_checkpoint(made[CHECKPOINT])
    return parser


def _group(parser: argparse.ArgumentParser, name: str) -> argparse._MutuallyExclusiveGroup:
    """The options of a command of which one only may be given; made when it is first asked for."""
    found = next((group for group in parser._mutually_exclusive_groups if group.title == name), None)
    if found is None:
        found = parser.add_mutually_exclusive_group()
        found.title = name
    return found


def _of_calibrate(calibrate: argparse.ArgumentParser) -> None:
    """The options of `parallax calibrate` alone."""
    calibrate.add_argument("-o", "--output", required=True, metavar="FILE", help="the profile that is written, JSON")
    calibrate.add_argument("--quick", action="store_true", help="fewer sizes and rounds")
    calibrate.add_argument(
        "--from",
        dest="calibrations",
        action="append",
        default=[],
        metavar="FILE",
        help="measure nothing: derive the profile of the resource file's hosts from that of others; may be repeated",
    )
    calibrate.add_argument(
        "--share-cores", action="store_true", help="with --from: the hosts share cores as the measured ones do"
    )


def _of_simulate(simulate: argparse.ArgumentParser) -> None:
    """The options of `parallax simulate` alone."""
    simulate.add_argument(
        "--hosts", type=_numbers, required=True, metavar="N,N,...", help="numbers of hosts, as 8,64,512,4096"
    )
    simulate.add_argument("--workers-per-host", type=positive, metavar="K", help="workers of every host")
    links = simulate.add_mutually_exclusive_group()
    links.add_argument("--link-rate", type=_rate, metavar="RATE", help="rate of every link, as 10gbit")
    links.add_argument("--scale-links", type=float, default=1.0, metavar="X", help="links X times as fast as measured")
    simulate.add_argument("--batch", type=float, default=1.0, metavar="X", help="a worker's batch X times as large")
    simulate.add_argument("--vocabulary", type=float, default=1.0, metavar="X", help="X times the rows of tables")
    simulate.add_argument("--width", type=float, default=1.0, metavar="X", help="rows of tables X times as wide")


def _of_checkpoint(checkpoint: argparse.ArgumentParser) -> None:
    """The actions of `parallax checkpoint`."""
    actions = checkpoint.add_subparsers(dest="action", required=True, metavar="ACTION")
    made = {
        name: actions.add_parser(name, help=f"{text[0].lower()}{text[1:].partition('.')[0]}", description=text)
        for name, text in _CHECKPOINT_DESCRIPTIONS.items()
    }
    for name in ("ls", "verify", "compact"):
        made[name].add_argument("folder", metavar="FOLDER", help="that CheckPointConfig.ckpt_dir names")
    export = made["export"]
    for name, what in (("input", "fed (default: every placeholder that outputs need)"), ("output", "fetched")):
        export.add_argument(
            f"--{name}",
            dest=f"{name}s",
            action="append",
            default=[],
            metavar="[NAME=]TENSOR",
            help=f"a tensor that will be {what}; NAME is its name in the signature",
        )
    export.add_argument("--plain", action="store_true", help="write a checkpoint in the place of a SavedModel")
    export.add_argument("checkpoint", metavar="CHECKPOINT", help="a folder, for its latest, or the prefix of one")
    export.add_argument("folder", metavar="FOLDER", help="where it goes; empty, or not there yet")
    export.add_argument("script", nargs="?", metavar="SCRIPT", help="the script, as it would be given to python")
    export.add_argument("args", nargs=argparse.REMAINDER, metavar="ARGS", help="its arguments")


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(sorted({positive(word.strip()) for word in text.split(",")}))


def _rate(text: str) -> int:
    rate = parse_bandwidth(text)
    if not rate:
        raise argparse.ArgumentTypeError(f"must be a rate in bits per second like 10gbit or 200mbit, not {text}")
    return rate


def _calibrate(arguments: argparse.Namespace) -> int:
    if arguments.share_cores and not arguments.calibrations:
        raise ConfigError("--share-cores belongs to --from FILE: a measurement finds out by itself.")
    if arguments.calibrations:
        from parallax.runtime.calibrate.derive import derive

        found = [cluster_profile_from_json(file_text(file), file) for file in arguments.calibrations]
        return derive(arguments.resource, found, arguments.output, arguments.share_cores)
    from parallax.runtime.calibrate.command import calibrate  # SciPy takes a second to import

    return calibrate(arguments.resource, arguments.workers, arguments.output, arguments.quick)


def _doctor(arguments: argparse.Namespace) -> int:
    from parallax.runtime.doctor.command import doctor

    of_machines = arguments.resource, arguments.workers, arguments.cluster_profile
    return doctor(*of_machines, arguments.ckpt_dir, arguments.json)


def _run_script(arguments: argparse.Namespace) -> int:
    """Runs the script in this process; `parallel_run` in it does the rest and leaves by SystemExit."""
    if not Path(arguments.script).is_file():
        _say(f"parallax: a script must be a file, and {arguments.script!r} is none.")
        return EXIT_USAGE
    wanted = _wanted(arguments)
    trace_options(wanted.trace, wanted.trace_steps)  # refused before the script
    shown_from = framework_level() if wanted.framework_log is None else wanted.framework_log
    wanted = replace(wanted, framework_log=shown_from)
    set_defaults({MIN_LOG_LEVEL: str(min(shown_from, 1))})
    if wanted.role == Role.CHECK:
        with second_build([arguments.script, *arguments.args], wanted) as second:
            return _run_here(arguments, wanted, shown_from, partial(_report_check, second))
    if wanted.role == Role.EXPORT:
        return _run_here(arguments, wanted, shown_from, partial(_write_model, arguments))
    return _run_here(arguments, wanted, shown_from)


def _report_check(second: SecondBuild, ended: JobEnded) -> int:
    """Reports what a check has found, of the graph that this process has built and of the other one's."""
    from parallax.api import GraphTaken
    from parallax.runtime.check.command import report

    return report(ended.found, second) if isinstance(ended, GraphTaken) else ended.status


def _write_model(arguments: argparse.Namespace, ended: JobEnded) -> int:
    """Exports the graph that the script has given."""
    from parallax.api import GraphTaken
    from parallax.runtime.checkpoint.command import export_lines

    if not isinstance(ended, GraphTaken):
        return ended.status
    for line in export_lines(ended.found, arguments.checkpoint, arguments.folder, arguments.inputs, arguments.outputs):
        print(line, flush=True)
    return 0


def _wanted(arguments: argparse.Namespace) -> Settings:
    """What the command line asks of this process."""
    role = {RUN: Role.LAUNCH, CHECKPOINT: Role.EXPORT}.get(arguments.command) or Role(arguments.command)
    given: dict[str, Any] = {"script_seed": drawn_seed()}
    for setting, options in options_by_setting().items():
        value = getattr(arguments, setting, None) if options else None
        if value is not None:
            given[setting] = " ".join(value) if isinstance(value, list) else value
    if role == Role.SIMULATE:
        given["what_if"] = _what_if(arguments).to_text()
    return Settings(Role.DRY_RUN if getattr(arguments, "dry_run", False) else role, **given)


def _run_here(
    arguments: argparse.Namespace,
    wanted: Settings,
    shown_from: int,
    finish: Callable[[JobEnded], int] = lambda ended: ended.status,
) -> int:
    """Runs the script; `finish` takes what ended it at its first job, and gives the exit status."""
    with quiet_import(shown_from):
        from parallax.analysis.reading import record
        from parallax.api import JobEnded
        from parallax.call import jobs_run

        record.install()
    join_deprecations(shown_from)
    alike = AlikeUntilBuilt(wanted.script_seed or drawn_seed())
    before, path = sys.argv, sys.path[0]
    try:
        with applied(wanted), local_training_noticed(wanted.role, arguments.command, _say):
            run_script([arguments.script, *arguments.args])
    except JobEnded as ended:
        return finish(ended)
    except SystemExit as stop:
        status = _status(stop)
        if status:
            return status
    except Exception as error:  # a script may raise anything: it is shown as Python shows it, status 1
        _say(error_text(error))
        return 1
    finally:
        sys.argv, sys.path[0] = before, path
        alike.part(0)
    if jobs_run():
        return 0
    _say(f"parallax: {arguments.script} ended without calling parallax.parallel_run: nothing was started.")
    return 1


def _what_if(arguments: argparse.Namespace) -> WhatIf:
    return WhatIf(
        hosts=arguments.hosts,
        workers_per_host=arguments.workers_per_host,
        link_bytes_per_s=arguments.link_rate,
        links=arguments.scale_links,
        batch=arguments.batch,
        vocabulary=arguments.vocabulary,
        width=arguments.width,
    )


def _show_plan(arguments: argparse.Namespace) -> int:
    """Prints a stored plan, or one variable of it, and writes its page."""
    plan = read_plan(arguments.plan)
    text = explanation(plan, arguments.explain) if arguments.explain else plan_table(plan, bool(arguments.all))
    sys.stdout.write(text)
    if arguments.html:
        from parallax.report.html.page import plan_page

        write_file(arguments.html, plan_page(plan), "--html")
    return 0


def _compare_plans(arguments: argparse.Namespace) -> int:
    """Prints in what two stored plans differ."""
    from parallax.report.diff import difference_text, differences

    found = differences(read_plan(arguments.first), read_plan(arguments.second))
    sys.stdout.write(difference_text(found, (arguments.first, arguments.second)))
    return 1 if found else 0


def _checkpoint(arguments: argparse.Namespace) -> int:
    """Lists, verifies, exports or compacts checkpoints."""
    if arguments.action == "export" and not arguments.plain:
        if arguments.script is None:
            raise ConfigError("A SavedModel is made of a script's graph: name the script, or export with --plain.")
        return _run_script(arguments)
    set_defaults({MIN_LOG_LEVEL: "2"})
    from parallax.runtime.checkpoint.command import compact_lines, list_checkpoints, plain_lines, verify_checkpoints

    if arguments.action == "verify":
        are_whole = []
        for line, is_whole in verify_checkpoints(arguments.folder):
            print(line, flush=True)
            are_whole.append(is_whole)
        return 0 if all(are_whole) else 1
    if arguments.action == "export" and (arguments.script or arguments.inputs or arguments.outputs):
        raise ConfigError("--plain takes all of a checkpoint: leave script, --input and --output out.")
    if arguments.action == "export":
        lines = plain_lines(arguments.checkpoint, arguments.folder)
    else:
        lines = (list_checkpoints if arguments.action == "ls" else compact_lines)(arguments.folder)
    for line in lines:
        print(line, flush=True)
    return 0


def _status(stop: SystemExit) -> int:
    """The exit status that Python gives a script for this."""
    if stop.code is None or isinstance(stop.code, int):
        return stop.code or 0
    _say(str(stop.code))
    return 1


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
