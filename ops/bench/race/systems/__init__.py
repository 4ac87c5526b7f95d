"""The systems of a race, one per file: the commands that start it, and the script that its user would write."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ops.bench.race.place import ROOT, Place
from ops.bench.race.run_forked import fork_argv
from ops.bench.race.turns import Task

_MODULE_BY_SYSTEM = {
    "parallax": "parallax",
    "parallax-alltoall": "parallax",
    "parallax-ps": "parallax",
    "parallax-allgather": "parallax",
    "parallax-allreduce": "parallax",
    "parallax-bf16": "parallax",
    "parallax-fp16": "parallax",
    "parallax-overlap": "parallax",
    "parallax-ucx": "parallax",
    "parallax-stages": "parallax",
    "parallax-beside": "parallax",
    "horovod": "horovod",
    "horovod-dense": "horovod",
    "tf-ps": "tf_ps",
    "tf-ps-async": "tf_ps",
    "alone": "alone",
}
BESIDE = "parallax-beside"
"""Parallax from another checkout, to compare revisions; `more["beside"]` of its task is the folder."""

SYSTEMS = tuple(name for name in _MODULE_BY_SYSTEM if name != "alone")
"""The systems of the command line; `alone` always runs, to measure the compute time."""

OTHER_LOSSES = ("parallax-stages", "tf-ps-async", "parallax-bf16", "parallax-fp16", "alone")
"""Systems whose losses may differ from the others': they use other batches, are asynchronous, or round."""


@dataclass(frozen=True, slots=True)
class Command:
    """A process to start.

    Attributes:
        host: the host.
        argv: the command line.
        environment: variables in addition to those of all processes.
        is_server: whether it never exits by itself.
        root: the checkout whose code it runs.
    """

    host: str
    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    is_server: bool = False
    root: Path = ROOT


def commands_of(place: Place, task: Task) -> list[Command]:
    """Returns the commands that start a system, from `commands(place, task)` in its file."""
    module: Any = importlib.import_module(module_of(task.system))
    return list(module.commands(place, task))


def module_of(system: str) -> str:
    """Returns the module of a system, which its processes run."""
    return f"{__name__}.{_MODULE_BY_SYSTEM[system]}"


def python_of(root: Path) -> str:
    """Returns the interpreter of a checkout: for this process's own checkout its own, else that of `.venv`."""
    return sys.executable if root == ROOT else str(root / ".venv" / "bin" / "python")


def script(task: Task, *words: str, root: Path = ROOT) -> tuple[str, ...]:
    """Returns the command line of a process that runs the system's script from a checkout."""
    return (python_of(root), "-m", module_of(task.system), str(task.file), *words)


def script_of_worker(place: Place, task: Task, *words: str) -> tuple[str, ...]:
    """Returns the command line of a plain system's server or worker; a host of several workers forks them."""
    python, *program = script(task, *words)
    return (python, *(fork_argv(tuple(program)) if task.workers > len(place.hosts) else program))
