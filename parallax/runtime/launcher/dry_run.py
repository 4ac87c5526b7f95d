"""Formats the output of `parallax run --dry-run`: the command that would start a job, its ranks and their variables."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from parallax.report.text import in_columns
from parallax.runtime.launcher.job import Job
from parallax.runtime.launcher.mpirun import (
    Launcher,
    list_exported,
    listen_address,
    mpirun_argv,
    mpirun_environment,
    visible_gpus,
)
from parallax.runtime.supervisor.control import HOST_ADDRESS

_DRAWN = "(drawn at the start)"


def dry_run_text(job: Job, launcher: Launcher) -> str:
    """The text of a dry run: the command, whole and split; the host and role of each rank; and the variables."""
    argv = mpirun_argv(job, launcher)
    common = mpirun_environment(job, _DRAWN, _DRAWN, launcher)
    lines = [
        "Nothing is started. The command:",
        "",
        shlex.join(argv),
        "",
        "The same, split:",
        "",
        argv[0],
        *_split(argv, launcher.python),
        "",
    ]
    lines += ["Ranks:", ""]
    rows = [("rank", "role", "host", "own variables"), *(_row(job, launcher, rank) for rank in range(job.num_ranks))]
    lines += [*in_columns(rows), "", "Variables of every rank:", ""]
    lines += [f"{name}={shlex.quote(common[name])}" for name in list_exported(job, launcher)]
    if job.cluster.is_local:
        lines.append("and all others of this process.")
    return "\n".join(lines) + "\n"


def _row(job: Job, launcher: Launcher, rank: int) -> tuple[str, str, str, str]:
    role = f"worker {rank}" if rank < job.num_workers else job.label_of(rank)
    variables = [f"OMPI_COMM_WORLD_RANK={rank}", visible_gpus(job, rank)]
    if job.servers:
        variables.append(f"{HOST_ADDRESS}={listen_address(job, rank)}")
    variables.append(f"LD_PRELOAD={launcher.preload_library}")
    return str(rank), role, job.host_of(rank), " ".join(variables)


def _split(argv: list[str], python: str) -> Iterator[str]:
    """Splits a command: one option per line with its values; the program of an application is one line."""
    line: list[str] = []
    in_program = False
    for word in argv[1:]:
        begins = word in (python, ":") or (word.startswith("-") and not in_program)
        if begins and line:
            yield f"    {shlex.join(line)}"
            line = []
        if word == ":":
            yield "  :"
            in_program = False
            continue
        in_program = in_program or word == python
        line.append(word)
    yield f"    {shlex.join(line)}"
