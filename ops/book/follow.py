"""Follows the steps of a page in a folder, and reports where the results differ from the page."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from ops.book.pages import ROOT, ChangeFile, Command, WriteFile, steps_of

LIMIT_S = 600.0
SHOWN_LINES = 60

ELSEWHERE = {
    "make": "it makes the environment in which the tests run; `python -m ops.book newcomer` runs it",
    ". .venv/bin/activate": "it only has an effect on an interactive shell",
    "pip install": "it makes another environment than that of the tests",
    "parallax setup": "it rebuilds this environment's libraries; tests/setup checks its commands",
    "sbatch": "there is no Slurm cluster; tests/runtime/launcher/test_recipes.py runs the script with a substitute",
    "kubectl": "there is no Kubernetes cluster; tests/runtime/launcher/test_recipes.py checks the job's command",
    "ssh": "there are no other machines",
    "parallax run -r cluster.yaml": "there are no other machines; tests/lab runs jobs on emulated hosts",
    "parallax plan -r hosts.yaml": "its hosts are the paper's; tests/bench/test_published.py makes the same plans",
    "parallax calibrate -r cluster.yaml": "there are no other machines; tests/lab calibrates emulated hosts",
    "parallax doctor -r cluster.yaml": "there are no other machines; tests/lab examines emulated hosts",
    "python -m ops.bench race": "a race takes minutes on a quiet machine; tests/bench runs a small one",
    "python -m ops.bench planning": "it measures for minutes; tests/bench runs a small one",
    "python -m ops.bench predictions": "it measures for an hour on a quiet machine; tests/bench tests its parts",
    "python -m ops.bench islands": "it trains for ten minutes on a quiet machine; tests/bench tests its parts",
    "python -m ops.bench regret": "it measures for an hour on a quiet machine; tests/bench tests its parts",
    "python -m ops.bench twin": "it races for a quarter of an hour on a quiet machine; tests/bench tests its parts",
    "python -m ops.bench published": "it needs 20 GiB; tests/bench runs a small one and compares the plans",
}
"""First words of the book's commands that cannot be run where the tests run -> the reason."""


class NotAsWritten(AssertionError):
    """A step did not have the result that its page shows."""


def elsewhere(command: str) -> str:
    """Returns why a command is not run here; empty if it is."""
    words = command.split()
    return next((why for begin, why in ELSEWHERE.items() if words[: len(begin.split())] == begin.split()), "")


def follow(page: Path, folder: Path, environment: Mapping[str, str], slow: bool, say: bool = False) -> list[Command]:
    """Follows all steps of a page; returns the commands that were run.

    Args:
        page: path in the project's folder.
        folder: where files are written and commands are run.
        environment: of the commands.
        slow: whether slow commands are run too.
        say: whether to print each command before it is run.

    Raises:
        NotAsWritten: a command ends with another status or does not print the lines shown, or a change does not apply.
    """
    done = []
    for step in steps_of((ROOT / page).read_text(encoding="utf-8"), str(page)):
        if isinstance(step, WriteFile):
            (folder / step.name).write_text(step.text, encoding="utf-8")
        elif isinstance(step, ChangeFile):
            _change(step, folder)
        elif (slow or not step.slow) and not elsewhere(step.text):
            if say:
                print(f"{step.place}: {step.text}", flush=True)
            _run(step, folder, environment)
            done.append(step)
    return done


def reader_environment() -> dict[str, str]:
    """Returns the variables of a shell in which this interpreter's environment is active and the project is found."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": "120"}


def _change(step: ChangeFile, folder: Path) -> None:
    file = folder / step.name
    text = file.read_text(encoding="utf-8")
    if text.count(step.before) != 1:
        raise NotAsWritten(f"{step.name} has the lines to change {text.count(step.before)} times:\n{step.before}")
    file.write_text(text.replace(step.before, step.after), encoding="utf-8")


def _run(command: Command, folder: Path, environment: Mapping[str, str]) -> None:
    process = subprocess.Popen(
        ["bash", "-c", command.text],
        cwd=folder,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        printed, _ = process.communicate(timeout=LIMIT_S)
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.communicate(timeout=60)
        raise
    problem = f"exit status {process.returncode}" if process.returncode != command.status else ""
    if not problem and (line := command.missing(printed)):
        problem = f"this was not printed where it is shown: {line}"
    if problem:
        last = "\n".join(printed.splitlines()[-SHOWN_LINES:])
        raise NotAsWritten(f"{command.place}: {command.text}\n{problem}\n-- it printed\n{last}")
