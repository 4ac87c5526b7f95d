"""What a worker and its supervisor tell each other: to the launcher one JSON object a line, by an inherited pipe.

The supervisor of the rank (`parallax.runtime.supervisor.agent`) opens the pipe and names its write end in an
environment variable. Outside a job the variable is not set and nothing is sent. Rank 0 has a second pipe, for the bytes
that the job gives back: those may be many, and beats must not wait behind them.

Every second a worker or server sends its beat, which its supervisor keeps (`runs` made, the `fetch` in progress and its
`seconds`; of a server only that it is one). A worker sends `in_run` (the fetch, the digest of its collectives, the
seconds so far) again and again once a run has lasted two seconds, `run_done`, `finished`, and `failed` with the
traceback. Worker 0 tells of each checkpoint (`saved`: its `step`, and whether it was `loaded`, not written), and sends
`preempted` (the `step`) when the state is saved and all workers leave. In a spare job each rank tells when it is
`ready`, and its `bytes` of memory.
"""

from __future__ import annotations

import json
import os
import struct
import threading
from collections.abc import Mapping

CONTROL_FD = "PARALLAX_CONTROL_FD"
RESULT_FD = "PARALLAX_RESULT_FD"
"""Rank 0's pipe for what the job gives back: how many bytes (RESULT_SIZE), then these bytes, if no file has them."""
RESULT_FILE = "PARALLAX_RESULT_FILE"
"""Set by the launcher where rank 0 is on its machine: a file in its memory for these bytes, which then go no other way.
mpirun takes a core for what it passes on: 28 MB/s, where the file takes 1 GB/s."""
RESULT_SIZE = struct.Struct(">Q")
PREEMPTION_FD = "PARALLAX_PREEMPTION_FD"
"""Rank 0's pipe by which its supervisor lets it know that the job is preempted: a byte, and reading never waits."""
BEAT = "alive"
SAVED = "saved"
READY = "ready"
HOST_ADDRESS = "PARALLAX_HOST_ADDRESS"
"""Set by the supervisor of a rank in a job with servers: the address of its host, in digits."""

_one_at_a_time = threading.Lock()


def send(message: Mapping[str, object]) -> bool:
    """Sends `message` to the launcher, or does nothing outside a job.

    Args:
        message: what is told; `kind` says which: `alive`, `in_run`, `run_done`, `finished`, `saved`, `ready`,
            `preempted`, `failed`.

    Returns:
        Whether it was sent.

    Raises:
        ValueError: `message` has no JSON form.
    """
    number = os.environ.get(CONTROL_FD)
    if not number:
        return False
    line = memoryview(json.dumps(message).encode("ascii") + b"\n")
    with _one_at_a_time:
        try:
            while line:  # one write, unless a signal cuts it short
                line = line[os.write(int(number), line) :]
        except BrokenPipeError:
            # The supervisor is dead: the kernel is ending this process too, and nobody is left to be told.
            return False
    return True


def take_result_pipe() -> tuple[int | None, str]:
    """The write end of rank 0's pipe for the job's result, once; None afterwards, on other ranks and outside a job.

    Returns:
        The descriptor, and the path of the file in the launcher's memory; empty where there is none.
    """
    number = os.environ.pop(RESULT_FD, "")
    return int(number) if number else None, os.environ.get(RESULT_FILE, "")


def is_preempted() -> bool:
    """Whether the supervisor has let this process know since the last call that the job is preempted."""
    number = os.environ.get(PREEMPTION_FD)
    if not number:
        return False
    try:
        return bool(os.read(int(number), 1))
    except BlockingIOError:
        return False


def host_address() -> str:
    """The address on which this rank's TensorFlow server listens, in digits; its supervisor has put it there."""
    return os.environ.get(HOST_ADDRESS) or "127.0.0.1"


def tell_saved(step: int, loaded: bool = False) -> None:
    """Tells the launcher of a checkpoint as soon as it is there: a job that is started again begins with it.

    Args:
        step: of the checkpoint.
        loaded: whether it was read and not written.
    """
    send({"kind": SAVED, "step": step, "loaded": loaded})
