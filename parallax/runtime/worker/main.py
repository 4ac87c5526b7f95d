"""Program of every rank (`python -m parallax.runtime.worker.main SCRIPT ARGS...`): runs the user's script as a worker.

Gradients are recorded from the first line of the script. A script that fails informs the launcher and exits at once,
without waiting for collectives that will never complete; one that succeeds waits for the others before it exits. A
script also ends early when a preempted job has saved (preemption.py).
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import socket
import sys
from collections.abc import Mapping
from contextlib import nullcontext

from parallax.runtime.supervisor.control import send
from parallax.runtime.supervisor.framework_log import join_deprecations, write_lines_once
from parallax.runtime.supervisor.preload import LIBRARY, forget_preloaded, is_fenced
from parallax.runtime.worker.barrier import wait_for_all
from parallax.runtime.worker.heartbeat import watching
from parallax.runtime.worker.preemption import Preempted
from parallax.runtime.worker.random_state import EqualUntilBuilt
from parallax.runtime.worker.ranks import ProcessGroup, membership
from parallax.runtime.worker.script import error_text, run_script, what_text
from parallax.runtime.worker.without_keras import leaving_out_keras
from parallax.settings.environment import settings


def main() -> None:
    """Runs the script named in the arguments; `-m MODULE` runs a module."""
    secret = forget_preloaded()
    with watching() as watch:
        try:
            check_fenced(secret)
            with membership() as members:
                is_whole = _run(sys.argv[1:], members)
                watch.finish()
                for last in (*members.at_end, *members.at_close):
                    last()
        except BaseException as error:  # an exit too: others may wait, so it is reported and ends this process
            _fail(error)
        sys.stdout.flush()
        sys.stderr.flush()
        wait_for_all(members.world)
        if not is_whole:
            _leave()


def check_fenced(secret: Mapping[str, str]) -> None:
    """Ends, with an error message, a process with which no other process of its job would communicate.

    Args:
        secret: the variable with the job's secret, as it was in the environment; empty if nothing is fenced.

    Raises:
        SystemExit: the library that uses the secret is not loaded.
    """
    if secret and not is_fenced():
        sys.exit(
            f"parallax: All processes of a job must be loaded with {LIBRARY}, and the loader of "
            f"{socket.gethostname()} did not take it, for the reason above. "
            "Build it on that host: `parallax setup`."
        )


def _run(words: list[str], members: ProcessGroup) -> bool:
    """Runs the script; returns whether it reached its own end."""
    with leaving_out_keras() if settings().without_keras else nullcontext():
        from parallax.analysis.reading.construction import record  # imports TensorFlow, which must come after MPI

    record.install()
    join_deprecations()
    write_lines_once()
    members.folders.install()
    members.when_built.append(members.folders.note_rank)
    members.when_built.append(EqualUntilBuilt(settings().script_seed or members.parcel.seed).part)
    try:
        run_script(words)
    except Preempted:
        return False
    except SystemExit as stop:
        if stop.code not in (None, 0):
            raise
    return True


def _leave() -> None:
    """Ends this process now, after the exit handlers of the script and libraries.

    Python would wait for threads and processes that only the rest of the script would have ended.
    """
    from mpi4py import MPI

    for child in multiprocessing.active_children():
        child.terminate()
    atexit._run_exitfuncs()
    MPI.Finalize()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _fail(error: BaseException) -> None:
    """Reports the error and ends this process now: others may wait for it in a collective.

    The launcher shows one rank's error for all. An error that cannot be sent goes to stderr.
    """
    status = 1
    if isinstance(error, SystemExit):
        text = "" if isinstance(error.code, int) else f"{error.code}\n"
        status = error.code if isinstance(error.code, int) else 1
    else:
        text = f"{error_text(error)}\n"
    sys.stdout.flush()
    sys.stderr.flush()
    if not send({"kind": "failed", "error": text, "what": what_text(error)}):
        sys.stderr.write(text)
        sys.stderr.flush()
    os._exit(status if 0 < status < 256 else 1)


if __name__ == "__main__":
    main()
