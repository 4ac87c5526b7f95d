"""What is checked of a process before it launches a job."""

from __future__ import annotations

from parallax.runtime.launcher.mpirun import find_mpirun
from parallax.runtime.launcher.own_process import check_own_process
from parallax.runtime.make_job import script_words
from parallax.runtime.worker.script import show_errors_briefly
from parallax.types import Buffer


def check_launching(function: Buffer) -> None:
    """Refuses, before anything is printed or started, a process from which no job can be started.

    From here on Python shows an uncaught error of Parallax as the `parallax` command does, without frames.

    Args:
        function: what workers call in place of this process's script; empty for the script.

    Raises:
        LaunchError: what is missing, mpirun too.
    """
    show_errors_briefly()
    check_own_process()
    find_mpirun()
    if not function:
        script_words()
