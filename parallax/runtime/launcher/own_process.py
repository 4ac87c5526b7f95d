"""Refuses, before anything is started, a process that lacks what a command or the ranks of a job require of it."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from parallax.base.errors import LaunchError
from parallax.report.text import bytes_text
from parallax.runtime.supervisor.host_checks import SEGMENT_BYTES, SESSION_BYTES

_STREAMS = {1: ("standard output", ">"), 2: ("standard error", "2>")}
_TEMPORARY_BYTES = 4096  # TensorFlow's import writes a temporary file
_BLOCK_BYTES = 1024  # the unit of `ulimit -f` in bash


def check_surroundings() -> None:
    """Refuses a process in which no Parallax command can work.

    Raises:
        LaunchError: it has no working folder or standard stream, or may write no files; names the remedy.
    """
    try:
        Path.cwd()
    except FileNotFoundError as error:
        raise LaunchError("The working folder of this process was deleted. Change to one that exists: cd") from error
    for number, (name, redirection) in _STREAMS.items():
        if not _is_open(number):
            raise LaunchError(
                f"The {name} of this process is closed (descriptor {number}), but must be open. To discard what is "
                f"written there, start it with {redirection}/dev/null"
            )
    _check_file_size(_TEMPORARY_BYTES, "Temporary files have")


def check_own_process() -> None:
    """Refuses a process from which no job can be started.

    Raises:
        LaunchError: as `check_surroundings`; or it may not write files as large as Open MPI needs.
    """
    check_surroundings()
    _check_file_size(max(SEGMENT_BYTES, SESSION_BYTES), "Open MPI's files in the temporary folder and /dev/shm have")


def _check_file_size(needed: int, what: str) -> None:
    allowed = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if 0 <= allowed < needed:
        raise LaunchError(
            f"{what} up to {bytes_text(needed)}, but a file that this process writes may have at most "
            f"{bytes_text(allowed)}. Raise the limit first: ulimit -f unlimited, or at least "
            f"{-(-needed // _BLOCK_BYTES)}"
        )


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True
