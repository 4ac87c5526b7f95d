"""How a worker gives something back to the process that launched it, and leaves its script before the script's end."""

from __future__ import annotations

import os
from pathlib import Path

from parallax.errors import SessionError
from parallax.runtime.supervisor.control import checksum, result_head, take_result_pipe
from parallax.types import Buffer

_WRITE_BYTES = 1 << 20


class CallDone(BaseException):
    """What this job was started for is done: the worker leaves as if its script had ended well.

    No SystemExit, so that no script takes it for its own.
    """


def send_result(data: Buffer) -> None:
    """Sends what the job gives back; it returns when the supervisor has all of it.

    Args:
        data: any number of bytes, which are not looked at.

    Raises:
        SessionError: on another worker than rank 0, outside a job, or when a result is sent already.
    """
    number, file = take_result_pipe()
    if number is None:
        raise SessionError(
            "A job gives one result back, which worker 0 sends, and this process has sent it or is no worker 0. Gather "
            "all that shall be known on worker 0 and send it at once."
        )
    left = memoryview(data).cast("B")
    head = result_head(left.nbytes, checksum(left))
    try:
        if file and left:
            with Path(file).open("wb", buffering=0) as written:
                _write(written.fileno(), left)
            left = left[:0]
        _write(number, memoryview(head))
        _write(number, left)
    finally:
        os.close(number)


def _write(fd: int, left: memoryview) -> None:
    while left:
        left = left[os.write(fd, left[:_WRITE_BYTES]) :]
