"""The systems of a race, each in a file of its own: how it is started, and the script that a user of it would write."""

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
"""Parallax as another checkout has it, for comparisons of revisions; `more["beside"]` of its task is the folder."""

SYSTEMS = tuple(name for name in _MODULE_BY_SYSTEM if name != "alone")
"""What can be asked for; `alone` is always run, to know the compute time."""

OTHER_LOSSES = ("parallax-stages", "tf-ps-async", "parallax-bf16", "parallax-fp16", "alone")
"""Their losses need not be those of the others: they have other batches, do not wait for each other, or round."""


@dataclass(frozen=True, slots=True)
class Command:
    """One process to be started.

    Attributes:
        host: where.
        argv: what.
        environment: variables beside those that all processes get.
        is_server: it does not end by itself.
        root: the checkout whose code it runs.
    """

    host: str
    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    is_server: bool = False
    root: Path = ROOT


def commands_of(place: Place, task: Task) -> list[Command]:
    """What starts a system; it has `commands(place, task)` in its file."""
    module: Any = importlib.import_module(module_of(task.system))
    return list(module.commands(place, task))


def module_of(system: str) -> str:
    """The module in which a system is, and which its processes run."""
    return f"{__name__}.{_MODULE_BY_SYSTEM[system]}"


def python_of(root: Path) -> str:
    """The interpreter whose environment a checkout runs in: that of this process for its own, else of its set-up."""
    return sys.executable if root == ROOT else str(root / ".venv" / "bin" / "python")


def script(task: Task, *words: str, root: Path = ROOT) -> tuple[str, ...]:
    """The command line of a process that runs the system's script, of a checkout."""
    return (python_of(root), "-m", module_of(task.system), str(task.file), *words)


def script_of_worker(place: Place, task: Task, *words: str) -> tuple[str, ...]:
    """The command line of a plain system's server or worker, which a host of several forks from one process."""
    python, *program = script(task, *words)
    return (python, *(fork_argv(tuple(program)) if task.workers > len(place.hosts) else program))
