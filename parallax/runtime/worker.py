"""What every rank runs (`python -m parallax.runtime.worker SCRIPT ARGS...`): the user's script, as a worker.

Gradients are recorded from the first line of the script on. A script that fails tells the launcher and ends at once,
without waiting for collectives that will never come; one that ends well waits for the others before it leaves.
"""

from __future__ import annotations

import os
import runpy
import sys
import time
import traceback

from parallax.runtime.control import send

_POLL_S = 0.02


def main() -> None:
    """Runs the script named in the arguments; `-m MODULE` runs a module."""
    # Before TensorFlow is loaded: both carry hwloc, and MPI must find its own.
    from mpi4py import MPI

    from parallax.analysis import record

    record.install()
    sys.argv = sys.argv[1:]
    try:
        if sys.argv[0] == "-m":
            sys.argv = sys.argv[1:]
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))  # noqa: PTH100, PTH120  # as Python itself does
            runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as stop:
        if stop.code not in (None, 0):
            _fail(stop)
    except BaseException as error:  # everything that ends a script is told to the launcher, then ends the process
        _fail(error)
    sys.stdout.flush()
    sys.stderr.flush()
    send({"kind": "finished", "runs": 0})
    last = MPI.COMM_WORLD.Ibarrier()
    while not last.Test():
        time.sleep(_POLL_S)


def _fail(error: BaseException) -> None:
    """Shows what happened and ends this process now: others may wait for it in a collective."""
    status = 1
    if isinstance(error, SystemExit):
        text = "" if isinstance(error.code, int) else f"{error.code}\n"
        status = error.code if isinstance(error.code, int) else 1
    else:
        frames = traceback.extract_tb(error.__traceback__)
        own = [f for f in frames if "runpy" not in f.filename and f.filename != __file__]
        chain = traceback.TracebackException.from_exception(error)
        chain.stack = traceback.StackSummary.from_list(own)
        text = "".join(chain.format())
    sys.stdout.flush()
    sys.stderr.write(text)
    sys.stderr.flush()
    send({"kind": "failed", "error": text})
    os._exit(status if 0 < status < 256 else 1)


if __name__ == "__main__":
    main()
