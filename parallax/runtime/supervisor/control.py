"""Messages between a worker, its supervisor and the launcher, each sealed with a version and a checksum.

A sealed line is `parallax/VERSION CRC JSON`: one JSON object in ASCII, and the CRC-32C of its bytes. A reader refuses
another version, a wrong checksum, and fields that a message of that kind does not have.

The supervisor of the rank (`parallax.runtime.supervisor.agent`) opens a pipe for the worker's messages and names its
write end in an environment variable. Outside a job the variable is not set and nothing is sent. Rank 0 has a second
pipe, for the bytes that the job returns: those may be many, and must not delay heartbeats.

Every second a worker or server sends a heartbeat, which its supervisor keeps (`runs` completed, the `fetch` in progress
and its `seconds`; of a server only that it is one). A worker sends `in_run` (the fetch, the digest of its collectives,
the seconds so far) repeatedly once a run has lasted two seconds, `run_done`, `finished`, and `failed` with the
traceback. Worker 0 reports each checkpoint (`saved`: its `step`, and whether it was `loaded`, not written), and sends
`preempted` (the `step`) when the state is saved and all workers leave. In a spare job each rank reports when it is
`ready`, and its `bytes` of memory. A worker whose checkpoint folder has not responded for too long reports what is
`overdue`, and the launcher ends the job.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from typing import Annotated, Any

import google_crc32c
import msgspec
from msgspec import Meta

CONTROL_FD = "PARALLAX_CONTROL_FD"
PREEMPTION_FD = "PARALLAX_PREEMPTION_FD"
"""Rank 0's pipe through which its supervisor signals a preemption: one byte, read without blocking."""
BEAT = "alive"
SAVED = "saved"
OVERDUE = "overdue"
READY = "ready"
HOST_ADDRESS = "PARALLAX_HOST_ADDRESS"
"""Set by the supervisor of a rank in a job with servers: the numeric address of its host."""

WIRE_VERSION = 1
"""Version of sealed lines; a format change needs a new number."""

MARK = b"parallax/"
"""Prefix of every sealed line; the version follows."""
_HEADING_BYTES = len(b"%s%d 01234567 " % (MARK, WIRE_VERSION))
_PIECE_BYTES = 1 << 20
_SHOWN_BYTES = 60

_Number = Annotated[int, Meta(ge=0, le=2**53)]
_Seconds = Annotated[float, Meta(ge=0, le=1e15)]

_one_at_a_time = threading.Lock()


class DamagedMessage(ValueError):
    """Bytes from another process do not match the format of this version; the text says how.

    The text may quote such bytes; control characters are escaped.
    """

    def __str__(self) -> str:
        return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in super().__str__())


class WorkerMessage(msgspec.Struct, frozen=True, tag_field="kind", forbid_unknown_fields=True, omit_defaults=True):
    """A worker's message; `kind` selects one of the classes below."""


class AliveMessage(WorkerMessage, frozen=True, tag=BEAT):
    """The worker's heartbeat, which its supervisor keeps."""

    runs: _Number | None = None  # servers send none
    fetch: str = ""
    seconds: _Seconds | None = None
    serves: bool = False


class InRunMessage(WorkerMessage, frozen=True, tag="in_run"):
    """A run that has lasted two seconds or more."""

    fetch: str
    collectives: str
    seconds: _Seconds
    patient: bool = False
    for_all: dict[str, list[str]] = {}
    failures: list[str] = []


class RunDoneMessage(WorkerMessage, frozen=True, tag="run_done"):
    """The reported run has ended."""


class FinishedMessage(WorkerMessage, frozen=True, tag="finished"):
    """The worker's loop has ended."""

    runs: _Number


class SavedMessage(WorkerMessage, frozen=True, tag=SAVED):
    """A checkpoint was written or loaded."""

    step: _Number
    loaded: bool


class ReadyMessage(WorkerMessage, frozen=True, tag=READY):
    """A process of a spare job has finished its imports."""

    bytes: _Number


class OverdueMessage(WorkerMessage, frozen=True, tag="overdue"):
    """The checkpoint folder has not responded for too long, and the job must be ended."""

    what: str


class PreemptedMessage(WorkerMessage, frozen=True, tag="preempted"):
    """The state is saved, and all workers leave."""

    step: _Number


class FailedMessage(WorkerMessage, frozen=True, tag="failed"):
    """The script has failed; `what` is the error without its traceback."""

    error: str
    what: str | None = None


_AnyMessage = (
    AliveMessage
    | InRunMessage
    | RunDoneMessage
    | FinishedMessage
    | SavedMessage
    | ReadyMessage
    | OverdueMessage
    | PreemptedMessage
    | FailedMessage
)


def check_message(message: object) -> dict[str, Any]:
    """Checks a worker's message and returns it with the fields of its kind, each of its type.

    Raises:
        DamagedMessage: its kind is unknown, or a field is missing, unknown, of another type or out of bounds.
    """
    return _convert(message, _AnyMessage)


def check_beat(doing: object) -> dict[str, Any]:
    """Checks the worker's last heartbeat as carried by a pulse and returns it; empty before the first.

    Raises:
        DamagedMessage: it is neither empty nor a heartbeat.
    """
    return _convert(doing, AliveMessage) if doing != {} else {}


def _convert(value: object, kind: Any) -> dict[str, Any]:
    try:
        converted: dict[str, Any] = msgspec.to_builtins(msgspec.convert(value, kind))
    except msgspec.ValidationError as error:
        raise DamagedMessage(f"a message must have the fields of its kind: {error}") from error
    return converted


def seal(body: bytes) -> bytes:
    """Returns the sealed line of a message: version, checksum, body, newline. The body must contain no newline."""
    return bytes(b"%s%d %08x %s\n" % (MARK, WIRE_VERSION, google_crc32c.value(body), body))


def unseal(line: bytes) -> bytes:
    """Returns the body of a line that `seal` made, with or without its newline.

    Raises:
        DamagedMessage: the line is not sealed, is of another version, or its checksum is wrong.
    """
    line = line.removesuffix(b"\n")
    body = line[_HEADING_BYTES:]
    if line + b"\n" == seal(body):
        return body
    version, space, _ = line.removeprefix(MARK).partition(b" ")
    if line.startswith(MARK) and space and version.isdigit() and int(version) != WIRE_VERSION:
        raise DamagedMessage(
            f"it is of version {int(version)} of the messages, and this process reads {WIRE_VERSION}: all hosts must "
            "have one version of Parallax (`parallax doctor`)"
        )
    shown = ascii(line[:_SHOWN_BYTES].decode("ascii", "backslashreplace"))
    raise DamagedMessage(f"its {len(line)} bytes do not have the checksum that they name, or name none: {shown}")


def read_sealed(line: bytes) -> Any:
    """Returns the JSON value of a line that `seal` made.

    Raises:
        DamagedMessage: as `unseal`, or the body is not JSON.
    """
    body = unseal(line)
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise DamagedMessage(f"its body is no JSON: {error}") from error


def checksum(data: bytes | bytearray | memoryview) -> int:
    """Returns the CRC-32C of bytes; copies at most one piece of them at a time."""
    view = memoryview(data).cast("B")
    crc = 0
    for begin in range(0, view.nbytes, _PIECE_BYTES):
        crc = google_crc32c.extend(crc, bytes(view[begin : begin + _PIECE_BYTES]))
    return crc


def send(message: Mapping[str, object]) -> bool:
    """Sends `message` to the launcher, or does nothing outside a job.

    Args:
        message: the message; `kind` is one of `alive`, `in_run`, `run_done`, `finished`, `saved`, `ready`,
            `preempted`, `overdue`, `failed`. Its fields are those of the class of that kind.

    Returns:
        Whether it was sent.

    Raises:
        ValueError: `message` has no JSON form.
    """
    number = os.environ.get(CONTROL_FD)
    if not number:
        return False
    line = memoryview(seal(json.dumps(message).encode("ascii")))
    with _one_at_a_time:
        try:
            while line:  # one write, unless a signal cuts it short
                line = line[os.write(int(number), line) :]
        except BrokenPipeError:
            # The supervisor is dead: this process is being ended too, and there is no receiver left.
            return False
    return True


def is_preempted() -> bool:
    """Whether the supervisor has signalled since the last call that the job is preempted."""
    number = os.environ.get(PREEMPTION_FD)
    if not number:
        return False
    try:
        return bool(os.read(int(number), 1))
    except BlockingIOError:
        return False


def host_address() -> str:
    """Returns the numeric address on which this rank's TensorFlow server listens, as set by its supervisor."""
    return os.environ.get(HOST_ADDRESS) or "127.0.0.1"


def tell_saved(step: int, loaded: bool = False) -> None:
    """Reports a checkpoint to the launcher as soon as it exists: a restarted job begins with it.

    Args:
        step: of the checkpoint.
        loaded: whether it was read rather than written.
    """
    send({"kind": SAVED, "step": step, "loaded": loaded})
