"""Options `--trace` and `--trace-steps`, and the folder of the trace files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from parallax.base.errors import ConfigError

DEFAULT_STEPS = (10, 14)
"""Default: after the one-time work of the first runs: memory, connections, Horovod's cache."""

MERGED, SUMMARY = "trace.json", "summary.txt"


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """The steps to trace, and the folder of the files.

    Attributes:
        folder: of the files.
        first: the first step; steps are counted from 0, and are this job's training runs.
        last: the last one.
    """

    folder: Path
    first: int
    last: int


def trace_steps(text: str) -> tuple[int, int]:
    """First and last step of `A-B`, or of `A` for one.

    Raises:
        ConfigError: when the text is neither.
    """
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if last < first:
        raise ConfigError(
            f"--trace-steps must be A-B, the first and last step counted from 0, got {text!r}. For example 10-14, or "
            "10 for one step."
        )
    return first, last


def trace_options(folder: str | None, steps: str | None) -> TraceOptions | None:
    """The options of a command line or environment; None if no folder is named.

    Raises:
        ConfigError: when the steps are not A-B, or are named without a folder.
    """
    if folder is None:
        if steps is not None:
            raise ConfigError(f"--trace-steps {steps} needs --trace DIR, the folder for the traces.")
        return None
    first, last = trace_steps(steps) if steps is not None else DEFAULT_STEPS
    return TraceOptions(Path(folder).absolute(), first, last)


def rank_file(folder: Path, rank: int) -> Path:
    """The file of one rank's trace."""
    return folder / f"rank-{rank}.json"


def make_ready(folder: Path, rank: int | None = None) -> None:
    """Creates the folder and removes the files of an earlier job: all, or those that one rank will write.

    Raises:
        ConfigError: when the folder cannot be written.
    """
    merged = [folder / MERGED, folder / SUMMARY]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe-{'launcher' if rank is None else rank}"
        probe.touch()
        probe.unlink()
        if rank is None:
            old = [*sorted(folder.glob("rank-*.json")), *merged]
        else:
            old = [rank_file(folder, rank), *(merged if rank == 0 else [])]
        for path in old:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"--trace must name a writable folder: {folder}: {error.strerror}. Name another.") from error
