"""The command `parallax`: run a script, profile and verify it; show, compare and simulate its plans."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path

from parallax.cluster.resource_file import parse_bandwidth
from parallax.errors import ConfigError, ParallaxError
from parallax.plans.plan import read_plan
from parallax.plans.what_if import WhatIf
from parallax.plans.wire import WIRE_DTYPES
from parallax.profiles.plan_inputs import file_text, read_measured
from parallax.profiles.profiles import cluster_profile_from_json
from parallax.report.diff import difference_text, differences
from parallax.report.html.files import write_file
from parallax.report.html.page import plan_page
from parallax.report.text import explanation, plan_table
from parallax.runtime.check.builds import SecondBuild, second_build
from parallax.runtime.supervisor.framework_log import INFO, join_deprecations, quiet_import
from parallax.runtime.trace.options import trace_wish
from parallax.runtime.worker.random_state import AlikeUntilBuilt, drawn_seed
from parallax.runtime.worker.script import error_text, run_script
from parallax.settings.config import COMPUTE_DTYPES, REPLAN_MODES
from parallax.settings.environment import (
    MIN_LOG_LEVEL,
    Role,
    Settings,
    applied,
    framework_level,
    set_defaults,
    with_equal_hashes,
)

EXIT_USAGE = 2

_DESCRIPTIONS = {
    "run": "Runs a script that calls parallax.parallel_run on all workers. Prints the plan, relays what the workers "
    "print, each line with its rank, and ends with the exit status of the job.",
    "plan": "Prints the plan of a script's graph. Starts nothing.",
    "verify": "Compares N workers with one process on the joined batch. Both take some steps; for every variable and "
    "slot it is printed whether each worker has what the one process has. All draw the same random numbers; what is "
    "drawn for the rows of a batch (dropout) the one process takes from the workers.",
    "check": "Says what of a script would be refused, and what is suspicious. Builds its graph in two processes, "
    "compares and plans it. Starts no workers. The exit status is 1 when a run would be refused, else 0.",
    "calibrate": "Measures the cluster and writes its profile. It runs a job that times all-reduce, all-to-all, "
    "allgather and a server between the hosts and within one, and each host's link. Nothing else should run there.",
    "profile": "Measures which rows the steps of a script touch and writes a model profile. Looks at batches, trains "
    "nothing and starts no job.",
    "show": "Prints a plan file.",
    "diff": "Prints in what two plan files differ. The exit status is 0 when in nothing, else 1.",
    "simulate": "Predicts a script's graph on clusters of other sizes. Prints step time, throughput, efficiency and "
    "memory of each, and where routes change. Starts nothing.",
}


def main(argv: list[str] | None = None) -> None:
    """Runs the command line and leaves with its exit status."""
    arguments = command_parser().parse_args(argv)
    environment = with_equal_hashes()
    if argv is None and environment is not None and "script" in arguments:  # nothing but Python is there yet
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
    by_command = {"show": _show_plan, "diff": _compare_plans, "calibrate": _calibrate}
    try:
        status = by_command.get(arguments.command, _run_script)(arguments)
    except ParallaxError as error:
        _say(f"parallax: {error}")
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
    run, plan, verify, profile = made["run"], made["plan"], made["verify"], made["profile"]
    check, calibrate, simulate, show, diff = (
        made["check"],
        made["calibrate"],
        made["simulate"],
        made["show"],
        made["diff"],
    )
    for command in (run, plan, profile, verify, check, calibrate):
        where = command.add_mutually_exclusive_group()
        where.add_argument("--workers", type=_positive, metavar="N", help="so many workers on this machine")
        where.add_argument("-r", "--resource", metavar="FILE", help="resource file that lists the machines")
    for command in (run, plan):
        command.add_argument("--graph", metavar="DIR", help="write each worker's graph for TensorBoard")
    for command in (run, plan, simulate, verify):
        command.add_argument(
            "--cluster", metavar="FILE", help="plan by seconds, from what `parallax calibrate` measured"
        )
    for command in (run, plan, simulate):
        command.add_argument("--profile", metavar="FILE", help="plan with the rows that steps were seen to touch")
    for command in (run, plan, verify, simulate):
        command.add_argument(
            "--wire-dtype", choices=WIRE_DTYPES, help="half precision on the wire for float32 rows and gradients"
        )
        command.add_argument(
            "--accumulate-steps", type=_positive, metavar="K", help="an update takes the gradients of K batches"
        )
    for command in (run, profile, verify):
        command.add_argument(
            "--compute-dtype", choices=COMPUTE_DTYPES, help="compute products and convolutions in it, on CPUs that can"
        )
    run.add_argument("--trace", metavar="DIR", help="write a trace of some steps of every worker, and who was slowest")
    run.add_argument("--trace-steps", metavar="A-B", help="the steps to trace, counted from 0 (default 10-14)")
    run.add_argument("--measure", metavar="FILE", help="write a model profile of the first steps")
    run.add_argument("--measure-steps", type=_positive, metavar="K", help="how many they are (default 20)")
    for command in (run, plan, verify):
        command.add_argument("--plan", dest="plan_file", metavar="FILE", help="take a plan that was written, as it is")
    for command in (run, verify):
        command.add_argument("--replan", choices=REPLAN_MODES, help="what to do about a better plan after some steps")
        command.add_argument("--replan-steps", type=_positive, metavar="K", help="after how many (default 20)")
    run.add_argument(
        "--verify-first", type=_positive, metavar="K", help="compare the first K steps with one process on all batches"
    )
    run.add_argument("--dry-run", action="store_true", help="print the command that would start the job; start nothing")
    plan.add_argument("--json", metavar="FILE", help="write the plan to a file")
    plan.add_argument("--explain", metavar="VARIABLE", help="everything about one variable")
    for command in (plan, show):
        command.add_argument("--all", action="store_true", help="a row for every variable, untrained ones too")
    _of_simulate(simulate)
    for command in (plan, simulate):
        command.add_argument("--html", metavar="FILE", help="write it as a page for a browser")
    verify.add_argument("--steps", type=_positive, default=5, metavar="K", help="steps on both sides (default 5)")
    for command in (profile, verify):
        command.add_argument("--feeds", metavar="FILE", help="FILE.npz, or FILE.py:FUNCTION(step, worker, num_workers)")
        command.add_argument(
            "--fetch",
            metavar="NAME",
            help="the op to run (default: the optimizer's; a wrong name lists those that train)",
        )
    profile.add_argument("--steps", type=_positive, metavar="K", help="batches of each worker (default 20)")
    profile.add_argument("--init", metavar="NAME", action="append", help="the op that begins a dataset's iterator")
    profile.add_argument("--compute", action="store_true", help="also train some steps in one process, to time them")
    profile.add_argument("-o", "--output", metavar="FILE", help="default: parallax-profile-GRAPH.json")
    profile.add_argument("--cluster", metavar="FILE", help="the cluster profile that the model profile belongs to")
    verify.add_argument(
        "--tolerance",
        type=float,
        help="largest error, relative to a variable's change (default 1e-5; bfloat16, float16: steps x rounding)",
    )
    verify.add_argument(
        "--claims", action="store_true", help="also try what the analysis says of every tensor between batch and update"
    )
    verify.add_argument("--joined-args", metavar="ARGS", help="the script's arguments for the one process")
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
    for command in (run, plan, profile, verify, check, simulate):
        command.add_argument(
            "--framework-log", action="store_true", help="also print what TensorFlow itself writes at its start"
        )
        command.add_argument("script", help="the script, as it would be given to python")
        command.add_argument("args", nargs=argparse.REMAINDER, help="its arguments")
    show.add_argument("plan", metavar="PLAN.json", help="as `parallax plan --json` wrote it")
    show.add_argument("--html", metavar="FILE", help="write it as a page for a browser")
    show.add_argument("--explain", metavar="VARIABLE", help="everything about one variable")
    diff.add_argument("first", metavar="A.json", help="a plan file")
    diff.add_argument("second", metavar="B.json", help="another")
    return parser


def _of_simulate(simulate: argparse.ArgumentParser) -> None:
    """The options of `parallax simulate` alone."""
    simulate.add_argument("-r", "--resource", metavar="FILE", help="resource file whose hosts are copied")
    simulate.add_argument(
        "--hosts", type=_numbers, required=True, metavar="N,N,...", help="numbers of hosts, as 8,64,512,4096"
    )
    simulate.add_argument("--workers-per-host", type=_positive, metavar="K", help="workers of every host")
    links = simulate.add_mutually_exclusive_group()
    links.add_argument("--link-rate", type=_rate, metavar="RATE", help="rate of every link, as 10gbit")
    links.add_argument("--scale-links", type=float, default=1.0, metavar="X", help="links X times as fast as measured")
    simulate.add_argument("--batch", type=float, default=1.0, metavar="X", help="a worker's batch X times as large")
    simulate.add_argument("--vocabulary", type=float, default=1.0, metavar="X", help="X times the rows of tables")
    simulate.add_argument("--width", type=float, default=1.0, metavar="X", help="rows of tables X times as wide")


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(sorted({_positive(word.strip()) for word in text.split(",")}))


def _rate(text: str) -> int:
    rate = parse_bandwidth(text)
    if not rate:
        raise argparse.ArgumentTypeError(f"must be a rate in bits per second like 10gbit or 200mbit, not {text}")
    return rate


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1, not {text}")
    return int(text)


def _calibrate(arguments: argparse.Namespace) -> int:
    if arguments.share_cores and not arguments.calibrations:
        raise ConfigError("--share-cores belongs to --from FILE: a measurement finds out by itself.")
    if arguments.calibrations:
        from parallax.runtime.calibrate.derive import derive

        found = [cluster_profile_from_json(file_text(file), file) for file in arguments.calibrations]
        return derive(arguments.resource, found, arguments.output, arguments.share_cores)
    from parallax.runtime.calibrate.command import calibrate  # SciPy takes a second to import

    return calibrate(arguments.resource, arguments.workers, arguments.output, arguments.quick)


def _run_script(arguments: argparse.Namespace) -> int:
    """Runs the script in this process; `parallel_run` in it does the rest and leaves by SystemExit."""
    if not Path(arguments.script).is_file():
        _say(f"parallax: a script must be a file, and {arguments.script!r} is none.")
        return EXIT_USAGE
    trace_wish(getattr(arguments, "trace", None), getattr(arguments, "trace_steps", None))  # refused before the script
    joined = getattr(arguments, "joined_args", None)
    role = Role.LAUNCH if arguments.command == "run" else Role(arguments.command)
    what_if = _what_if(arguments).to_text() if role == Role.SIMULATE else None
    shown_from = INFO if arguments.framework_log else framework_level()
    seed = drawn_seed()
    wanted = Settings(
        role=Role.DRY_RUN if getattr(arguments, "dry_run", False) else role,
        workers=getattr(arguments, "workers", None),
        resource=arguments.resource,
        plan_json=getattr(arguments, "json", None),
        html=_absolute(getattr(arguments, "html", None)),
        what_if=what_if,
        explain=getattr(arguments, "explain", None),
        show_all=getattr(arguments, "all", None) or None,
        cluster_profile=_absolute(getattr(arguments, "cluster", None)),
        model_profile=_absolute(getattr(arguments, "profile", None)),
        wire_dtype=getattr(arguments, "wire_dtype", None),
        accumulate_steps=getattr(arguments, "accumulate_steps", None),
        script_seed=seed,
        compute_dtype=getattr(arguments, "compute_dtype", None),
        graph=getattr(arguments, "graph", None),
        trace=getattr(arguments, "trace", None),
        trace_steps=getattr(arguments, "trace_steps", None),
        steps=getattr(arguments, "steps", None) or getattr(arguments, "measure_steps", None),
        feeds=getattr(arguments, "feeds", None),
        fetch=getattr(arguments, "fetch", None),
        tolerance=getattr(arguments, "tolerance", None),
        verify_first=getattr(arguments, "verify_first", None),
        claims=getattr(arguments, "claims", None) or None,
        joined_args="\n".join(shlex.split(joined)) if joined else None,
        measure=getattr(arguments, "measure", None) or getattr(arguments, "output", None),
        compute=getattr(arguments, "compute", None) or None,
        initializers=" ".join(getattr(arguments, "init", None) or ()) or None,
        replan=getattr(arguments, "replan", None),
        replan_steps=getattr(arguments, "replan_steps", None),
        plan_file=_absolute(getattr(arguments, "plan_file", None)),
        cluster=_fingerprint(getattr(arguments, "cluster", None)),
        framework_log=shown_from,
    )
    set_defaults({MIN_LOG_LEVEL: str(min(shown_from, 1))})
    if role == Role.CHECK:
        with second_build([arguments.script, *arguments.args], wanted) as second:
            return _run_here(arguments, wanted, shown_from, second)
    return _run_here(arguments, wanted, shown_from)


def _run_here(
    arguments: argparse.Namespace, wanted: Settings, shown_from: int, second: SecondBuild | None = None
) -> int:
    """Runs the script; for a check, a second process builds its graph too."""
    with quiet_import(shown_from):
        from parallax.analysis.reading import record
        from parallax.api import GraphChecked, JobEnded
        from parallax.runtime.check.command import report

        record.install()
    join_deprecations(shown_from)
    alike = AlikeUntilBuilt(wanted.script_seed or drawn_seed())
    before, path = sys.argv, sys.path[0]
    try:
        with applied(wanted):
            run_script([arguments.script, *arguments.args])
    except JobEnded as ended:
        if second is not None and isinstance(ended, GraphChecked):
            return report(ended.found, second)
        return ended.status
    except SystemExit as stop:
        status = _status(stop)
        if status:
            return status
    except Exception as error:  # whatever the script raises is shown, and ends it
        _say(error_text(error))
        return 1
    finally:
        sys.argv, sys.path[0] = before, path
        alike.part(0)
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
    text = explanation(plan, arguments.explain) if arguments.explain else plan_table(plan, arguments.all)
    sys.stdout.write(text)
    if arguments.html:
        write_file(arguments.html, plan_page(plan), "--html")
    return 0


def _compare_plans(arguments: argparse.Namespace) -> int:
    """Prints in what two stored plans differ."""
    found = differences(read_plan(arguments.first), read_plan(arguments.second))
    sys.stdout.write(difference_text(found, (arguments.first, arguments.second)))
    return 1 if found else 0


def _absolute(file: str | None) -> str | None:
    """A path that stays the same when the script changes its folder."""
    return None if file is None else str(Path(file).absolute())


def _fingerprint(file: str | None) -> str | None:
    """The fingerprint of a cluster profile."""
    cluster = read_measured(file, None).cluster
    return None if cluster is None else cluster.fingerprint


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
