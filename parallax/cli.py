"""The command `parallax`: run a script, show its plan, verify it."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from parallax.environment import Role, Settings, applied, set_defaults
from parallax.errors import ParallaxError
from parallax.runtime.script import error_text, run_script
from parallax.runtime.trace.wish import trace_wish

EXIT_USAGE = 2


def main(argv: list[str] | None = None) -> None:
    """Runs the command line and leaves with its exit status."""
    arguments = _parser().parse_args(argv)
    try:
        status = (_calibrate if arguments.command == "calibrate" else _run_script)(arguments)
    except ParallaxError as error:
        _say(f"parallax: {error}")
        status = 1
    sys.exit(status)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="parallax", description="Data-parallel training of TensorFlow graphs.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="run a script that calls parallax.parallel_run on all workers")
    plan = commands.add_parser("plan", help="print the plan of a script's graph; starts nothing")
    verify = commands.add_parser("verify", help="compare N workers with one process on the joined batch")
    calibrate = commands.add_parser("calibrate", help="measure the cluster and write its profile")
    for command in (run, plan, verify, calibrate):
        where = command.add_mutually_exclusive_group()
        where.add_argument("--workers", type=_positive, metavar="N", help="so many workers on this machine")
        where.add_argument("-r", "--resource", metavar="FILE", help="resource file that lists the machines")
    for command in (run, plan):
        command.add_argument("--graph", metavar="DIR", help="write each worker's graph for TensorBoard")
    run.add_argument("--trace", metavar="DIR", help="write a trace of some steps of every worker, and who was slowest")
    run.add_argument("--trace-steps", metavar="A-B", help="the steps to trace, counted from 0 (default 10-14)")
    run.add_argument("--dry-run", action="store_true", help="print the command that would start the job; start nothing")
    plan.add_argument("--json", metavar="FILE", help="write the plan to a file")
    plan.add_argument("--explain", metavar="VARIABLE", help="everything about one variable")
    verify.add_argument("--steps", type=_positive, default=5, metavar="K", help="steps on both sides (default 5)")
    verify.add_argument("--feeds", metavar="FILE", help="FILE.npz, or FILE.py:FUNCTION(step, worker, num_workers)")
    verify.add_argument("--fetch", metavar="NAME", help="the op to run (default: the optimizer's training op)")
    verify.add_argument("--tolerance", type=float, default=1e-5, help="largest relative difference (default 1e-5)")
    verify.add_argument("--joined-args", metavar="ARGS", help="the script's arguments for the one process")
    calibrate.add_argument("-o", "--output", required=True, metavar="FILE", help="the profile that is written, JSON")
    calibrate.add_argument("--quick", action="store_true", help="fewer sizes and rounds")
    for command in (run, plan, verify):
        command.add_argument("script", help="the script, as it would be given to python")
        command.add_argument("args", nargs=argparse.REMAINDER, help="its arguments")
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1, not {text}")
    return int(text)


def _calibrate(arguments: argparse.Namespace) -> int:
    from parallax.runtime.calibrate.command import calibrate  # SciPy takes a second to import

    return calibrate(arguments.resource, arguments.workers, arguments.output, arguments.quick)


def _run_script(arguments: argparse.Namespace) -> int:
    """Runs the script in this process; `parallel_run` in it does the rest and leaves by SystemExit."""
    if not Path(arguments.script).is_file():
        _say(f"parallax: a script must be a file, and {arguments.script!r} is none.")
        return EXIT_USAGE
    trace_wish(getattr(arguments, "trace", None), getattr(arguments, "trace_steps", None))  # refused before the script
    joined = getattr(arguments, "joined_args", None)
    role = {"run": Role.LAUNCH, "plan": Role.PLAN, "verify": Role.VERIFY}[arguments.command]
    wanted = Settings(
        role=Role.DRY_RUN if getattr(arguments, "dry_run", False) else role,
        workers=arguments.workers,
        resource=arguments.resource,
        plan_json=getattr(arguments, "json", None),
        explain=getattr(arguments, "explain", None),
        graph=getattr(arguments, "graph", None),
        trace=getattr(arguments, "trace", None),
        trace_steps=getattr(arguments, "trace_steps", None),
        steps=getattr(arguments, "steps", None),
        feeds=getattr(arguments, "feeds", None),
        fetch=getattr(arguments, "fetch", None),
        tolerance=getattr(arguments, "tolerance", None),
        joined_args="\n".join(shlex.split(joined)) if joined else None,
    )
    set_defaults({"TF_CPP_MIN_LOG_LEVEL": "1"})
    from parallax.analysis import record
    from parallax.api import JobEnded

    record.install()
    before, path = sys.argv, sys.path[0]
    try:
        with applied(wanted):
            run_script([arguments.script, *arguments.args])
    except JobEnded as ended:
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
    _say(f"parallax: {arguments.script} ended without calling parallax.parallel_run: nothing was started.")
    return 1


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
