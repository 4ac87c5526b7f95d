"""The command `parallax`: runs, profiles and verifies a script; shows, compares and simulates its plans."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parallax.base.errors import ConfigError, ParallaxError
from parallax.base.strict import shown
from parallax.cluster.plan_inputs import file_text
from parallax.cluster.profiles import cluster_profile_from_json
from parallax.entry.command_line import command_parser, complete
from parallax.plans.plan import read_plan
from parallax.plans.what_if import WhatIf
from parallax.report.plan_table import explain_variable, plan_table
from parallax.report.show import write_file
from parallax.runtime.check.builds import SecondBuild, second_build
from parallax.runtime.launcher.early_server import end_early_server, start_early_server
from parallax.runtime.launcher.job import cluster_named
from parallax.runtime.launcher.own_process import check_own_process, check_surroundings
from parallax.runtime.supervisor.framework_log import join_deprecations, quiet_import, write_lines_once
from parallax.runtime.trace.options import trace_options
from parallax.runtime.worker.local_training import noticing_local_training
from parallax.runtime.worker.random_state import EqualUntilBuilt, draw_seed
from parallax.runtime.worker.script import MODULE, error_text, mentions_keras, run_script
from parallax.settings import checks
from parallax.settings.config import HOST_TIMEOUT_S
from parallax.settings.environment import (
    MIN_LOG_LEVEL,
    Role,
    Settings,
    apply_settings,
    framework_level,
    set_defaults,
    with_equal_hashes,
)
from parallax.settings.merge import options_by_setting
from parallax.settings.options import CALIBRATE, CHECKPOINT, RUN, VERIFY

if TYPE_CHECKING:
    from parallax.entry.api import JobEnded

EXIT_USAGE = 2


def main(argv: list[str] | None = None) -> None:
    """Runs the command line and exits with its status."""
    arguments = command_parser().parse_args(argv)
    environment = with_equal_hashes()
    if argv is None and environment is not None and "script" in arguments:  # no module but Python's own is loaded yet
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
    by_command: dict[str, Callable[[argparse.Namespace], int]] = {
        **{"show": _show_plan, "diff": _compare_plans, "calibrate": _calibrate, "checkpoint": _checkpoint},
        **{"doctor": _doctor, "setup": _set_up, "completion": _complete},
    }
    try:
        (check_own_process if arguments.command in (RUN, VERIFY, CALIBRATE) else check_surroundings)()
        status = by_command.get(arguments.command, _run_script)(arguments)
    except ParallaxError as error:
        _say("\n".join(map(shown, f"parallax: {error}".split("\n"))))  # it may contain names from files
        status = EXIT_USAGE if arguments.command == "diff" else 1  # for diff, 1 means that plans differ
    sys.exit(status)


def _calibrate(arguments: argparse.Namespace) -> int:
    if arguments.share_cores and not arguments.calibrations:
        raise ConfigError("--share-cores needs --from FILE: a measurement detects shared cores by itself.")
    if arguments.calibrations:
        from parallax.runtime.calibrate.derive import derive

        calibrations = [cluster_profile_from_json(file_text(file), file) for file in arguments.calibrations]
        return derive(arguments.resource, calibrations, arguments.output, arguments.share_cores)
    from parallax.runtime.calibrate.command import calibrate  # SciPy takes a second to import

    return calibrate(arguments.resource, arguments.workers, arguments.output, arguments.quick)


def _doctor(arguments: argparse.Namespace) -> int:
    from parallax.runtime.doctor.command import doctor

    of_machines = arguments.resource, arguments.workers, arguments.cluster_profile
    limit_s = HOST_TIMEOUT_S if arguments.host_timeout_s is None else arguments.host_timeout_s
    limit_s = checks.seconds("host_timeout_s", limit_s)
    return doctor(*of_machines, arguments.ckpt_dir, arguments.json, limit_s)


def _complete(arguments: argparse.Namespace) -> int:
    print(complete(arguments.shell))
    return 0


def _set_up(_: argparse.Namespace) -> int:
    from parallax.base.setup.command import set_up

    return set_up()


def _run_script(arguments: argparse.Namespace) -> int:
    """Runs the script in this process; `parallel_run` in it does the rest and exits by SystemExit."""
    if arguments.script != MODULE and not Path(arguments.script).is_file():
        _say(f"parallax: the script must be a file, got {arguments.script!r}.")
        return EXIT_USAGE
    requested = _read_settings(arguments)
    trace_options(requested.trace, requested.trace_steps)  # refused before the script runs
    shown_from = framework_level() if requested.framework_log is None else requested.framework_log
    requested = replace(requested, framework_log=shown_from)
    set_defaults({MIN_LOG_LEVEL: str(min(shown_from, 1))})
    if requested.role == Role.CHECK:
        with second_build([arguments.script, *arguments.args], requested) as second:
            return _run_here(arguments, requested, shown_from, partial(_report_check, second))
    if requested.role == Role.EXPORT:
        return _run_here(arguments, requested, shown_from, partial(_write_model, arguments))
    return _run_here(arguments, requested, shown_from)


def _report_check(second: SecondBuild, ended: JobEnded) -> int:
    """Reports the results of a check, from the graphs of this process and of the other one."""
    from parallax.entry.api import GraphBuilt
    from parallax.runtime.check.command import report

    return report(ended.graph, second) if isinstance(ended, GraphBuilt) else ended.status


def _write_model(arguments: argparse.Namespace, ended: JobEnded) -> int:
    """Exports the script's graph."""
    from parallax.entry.api import GraphBuilt
    from parallax.runtime.checkpoint.commands.command import export_lines

    if not isinstance(ended, GraphBuilt):
        return ended.status
    for line in export_lines(ended.graph, arguments.checkpoint, arguments.folder, arguments.inputs, arguments.outputs):
        print(line, flush=True)
    return 0


def _read_settings(arguments: argparse.Namespace) -> Settings:
    """Returns the command line's settings of this process."""
    role = {RUN: Role.LAUNCH, CHECKPOINT: Role.EXPORT}.get(arguments.command) or Role(arguments.command)
    values: dict[str, Any] = {"script_seed": draw_seed()}
    for setting, options in options_by_setting().items():
        value = getattr(arguments, setting, None) if options else None
        if value is not None:
            values[setting] = " ".join(value) if isinstance(value, list) else value
    if role == Role.SIMULATE:
        values["what_if"] = _what_if(arguments).to_text()
    return Settings(Role.DRY_RUN if getattr(arguments, "dry_run", False) else role, **values)


def _run_here(
    arguments: argparse.Namespace,
    requested: Settings,
    shown_from: int,
    finish: Callable[[JobEnded], int] = lambda ended: ended.status,
) -> int:
    """Runs the script; `finish` receives the exception that ended it at its first job, and returns the exit status."""
    words = [arguments.script, *arguments.args]
    if requested.role == Role.LAUNCH:
        with contextlib.suppress(ParallaxError, OSError):  # the script's call raises these too
            start_early_server(cluster_named(requested.resource, requested.workers), mentions_keras(words))
    with quiet_import(shown_from):
        from parallax.analysis.reading.construction import record
        from parallax.entry.api import JobEnded
        from parallax.entry.call import jobs_run

        record.install()
    join_deprecations(shown_from)
    write_lines_once()
    equal_draws = EqualUntilBuilt(requested.script_seed or draw_seed())
    before, path = sys.argv, sys.path[0]
    try:
        with apply_settings(requested), noticing_local_training(requested.role, arguments.command, _say):
            run_script(words)
    except JobEnded as ended:
        return finish(ended)
    except SystemExit as stop:
        status = _status(stop)
        if status:
            return status
    except Exception as error:  # a script may raise anything: it is shown as Python shows it, with status 1
        _say(error_text(error))
        return 1
    finally:
        sys.argv, sys.path[0] = before, path
        equal_draws.part(0)
        end_early_server()
    if jobs_run():
        return 0
    name = arguments.args[0] if arguments.script == MODULE else arguments.script
    _say(f"parallax: {name} ended without calling parallax.parallel_run: nothing was started.")
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
    text = explain_variable(plan, arguments.explain) if arguments.explain else plan_table(plan, bool(arguments.all))
    sys.stdout.write(text)
    if arguments.html:
        from parallax.report.html.page import plan_page

        write_file(arguments.html, plan_page(plan), "--html")
    return 0


def _compare_plans(arguments: argparse.Namespace) -> int:
    """Prints the differences between two stored plans."""
    from parallax.report.diff import difference_text, differences

    plan_differences = differences(read_plan(arguments.first), read_plan(arguments.second))
    sys.stdout.write(difference_text(plan_differences, (arguments.first, arguments.second)))
    return 1 if plan_differences else 0


def _checkpoint(arguments: argparse.Namespace) -> int:
    """Lists, verifies, exports or compacts checkpoints."""
    if arguments.action == "export" and not arguments.plain:
        if arguments.script is None:
            raise ConfigError("A SavedModel is exported from the graph of a script: name the script, or give --plain.")
        return _run_script(arguments)
    set_defaults({MIN_LOG_LEVEL: "2"})
    from parallax.runtime.checkpoint.commands.command import (
        compact_lines,
        list_checkpoints,
        plain_lines,
        verify_checkpoints,
    )

    if arguments.action == "verify":
        are_whole = []
        for line, is_whole in verify_checkpoints(arguments.folder):
            print(line, flush=True)
            are_whole.append(is_whole)
        return 0 if all(are_whole) else 1
    if arguments.action == "export" and (arguments.script or arguments.inputs or arguments.outputs):
        raise ConfigError("--plain exports the whole checkpoint: remove script, --input and --output.")
    if arguments.action == "export":
        lines = plain_lines(arguments.checkpoint, arguments.folder)
    else:
        lines = (list_checkpoints if arguments.action == "ls" else compact_lines)(arguments.folder)
    for line in lines:
        print(line, flush=True)
    return 0


def _status(stop: SystemExit) -> int:
    """The exit status that Python derives from this exception for a script."""
    if stop.code is None or isinstance(stop.code, int):
        return stop.code or 0
    _say(str(stop.code))
    return 1


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
